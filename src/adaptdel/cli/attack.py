"""``adaptdel attack``: a data file attacked into a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from adaptdel.cli.engine import DATA_HELP, data_path, engine_options, engine_settings
from adaptdel.hyperparameters import ATTACK
from adaptdel.text.data import DATA

_PARTS = ("masked_lm", "masked_lm_context", "sentence_encoder", "word_vectors", "tagger", "stop_words")
_LIMITS = ("inputs", "votes", "queries", "seconds", "budget", "beam", "seed")
_ADAPTIVE_ONLY = ("budget", "beam", "vocabulary")
_TEXTATTACK_ONLY = ("votes", "fresh_votes", *_PARTS)


@click.command("attack")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--data", required=True, multiple=True, help=DATA_HELP)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the run.")
@click.option(
    "--recipe",
    default="adaptive",
    show_default=True,
    help="adaptive, or a recipe of TextAttack: clare, bae-i, bert-attack, deepwordbug, textfooler (extra attack); all "
    "runs every recipe into a folder of its own in OUT.",
)
@click.option(
    "--inputs",
    default=ATTACK.inputs,
    show_default=True,
    type=int,
    help="Number of inputs, drawn at random with the seed.",
)
@click.option(
    "--votes", default=ATTACK.votes, show_default=True, type=int, help="Votes that answer a query of TextAttack."
)
@click.option(
    "--queries", default=ATTACK.queries, show_default=True, type=int, help="Largest number of queries for an input."
)
@click.option("--seconds", default=ATTACK.seconds, show_default=True, type=float, help="Time limit for an input.")
@click.option(
    "--budget", default=None, type=int, help="Largest number of edits of the adaptive attack.  [default: the length]"
)
@click.option(
    "--beam",
    default=ATTACK.beam,
    show_default=True,
    type=int,
    help="Texts that the adaptive attack keeps: 1 is greedy.",
)
@click.option(
    "--ops",
    default=None,
    help="Operations that are certified and attacked: edit, or some of del,ins,sub.  [default: the model's]",
)
@click.option(
    "--vocabulary",
    default=None,
    metavar="FILE",
    help="Labelled texts, such as the training data, whose words the adaptive attack writes.  [default: --data]",
)
@click.option(
    "--fresh-votes",
    is_flag=True,
    help="Draw new votes for a text that is queried again. Without it, the first answer is kept, as TextAttack does.",
)
@click.option(
    "--masked-lm", default=None, metavar="FOLDER", help="Masked language model of CLARE, BAE and BERT-Attack."
)
@click.option(
    "--masked-lm-context",
    default=None,
    type=int,
    metavar="TOKENS",
    help="Tokens around a word that the masked language model reads: fewer are much faster.  [default: the whole text]",
)
@click.option(
    "--sentence-encoder", default=None, metavar="FOLDER", help="Sentence encoder in place of the Universal one."
)
@click.option(
    "--word-vectors", default=None, metavar="FILE", help="Word vectors of TextFooler, in GloVe's text format."
)
@click.option(
    "--tagger", default=None, metavar="FOLDER", help="NLTK data with a tagger; none leaves the constraint out."
)
@click.option("--stop-words", default=None, metavar="FILE", help="Words that are not changed, one per line.")
@engine_options
@click.option("--seed", default=ATTACK.seed, show_default=True, type=int, help="Seed of the sample and of all noise.")
@click.option("--text-column", default=None, help=f"Column of the texts.  [default: as in training, or {DATA.text}]")
@click.option("--label-column", default=None, help=f"Column of the labels.  [default: as in training, or {DATA.label}]")
@click.option(
    "--id-column", default=DATA.ids, show_default=True, help="Column of the ids; '' identifies inputs by texts."
)
@click.option("--encoding", default=DATA.encoding, show_default=True, help="Encoding of the file.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def attack_command(
    context: click.Context,
    /,
    models: tuple[str, ...],
    data: tuple[str, ...],
    out: Path,
    recipe: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Attack MODEL on inputs of a data file.

    MODEL is the folder of a model. The run in the folder OUT holds every attacked text, its true edit distance, whether
    fresh votes confirm that the smoothed answer changed, and the certified radius. An interrupted run is resumed by the
    same command. adaptdel report shows runs.

    Several models are attacked together, all on one input before the next, each into a folder of its own name in OUT:
    what a recipe of TextAttack can do with a text is then found once for all of them. With --workers or --engine they
    are attacked one after the other.
    """
    from adaptdel.attacks.attack_run import AttackJob, attack_data, attack_together
    from adaptdel.attacks.outcomes import attack_table, gap_table
    from adaptdel.attacks.recipes import RECIPES, USED_PARTS
    from adaptdel.core.checks import check_choice
    from adaptdel.runs.inputs import Source

    check_choice("recipe", recipe, (*RECIPES, "all"))
    given = {
        name for name in options if context.get_parameter_source(name) not in (None, click.core.ParameterSource.DEFAULT)
    }
    _check_used(recipe, given)
    settings = replace(ATTACK, **{name: options[name] for name in _LIMITS})
    engine = engine_settings(options)
    targets = [_attacked(model, options) for model in models]
    folders = _folders(out, models)
    words, runs = options["vocabulary"], []
    for name in RECIPES if recipe == "all" else (recipe,):
        jobs = []
        for (attacked, columns), folder in zip(targets, folders, strict=True):
            source = Source(data_path(data), **columns, ids=options["id_column"], encoding=options["encoding"])
            jobs.append(
                AttackJob(
                    attacked,
                    source,
                    folder / name if recipe == "all" else folder,
                    name,
                    settings,
                    ops=options["ops"],
                    vocabulary=None if words is None or name != "adaptive" else replace(source, path=words),
                    parts={part: str(options[part]) for part in USED_PARTS[name] if options[part] is not None},
                    fresh=options["fresh_votes"] and name != "adaptive",
                    engine=engine,
                )
            )
        if len(jobs) > 1 and not engine.is_distributed:
            runs += attack_together(jobs, note=_note, progress="log")
        else:
            runs += [attack_data(job, note=_note, progress="log") for job in jobs]
    attacked_models = [model for _ in range(len(runs) // len(models)) for model in models]
    rows = [
        {"model": model, "recipe": run.manifest["recipe"], **run.measures}
        for model, run in zip(attacked_models, runs, strict=True)
    ]
    if as_json:
        click.echo(json.dumps({"run": str(out), "attacks": rows}, indent=2, ensure_ascii=False))
        return
    click.echo(attack_table(rows).to_terminal())
    click.echo("")
    click.echo(gap_table(rows).to_terminal())
    click.echo(f"run: {out}")


def _note(text: str) -> None:
    click.echo(text, err=True)


def _folders(out: Path, models: tuple[str, ...]) -> list[Path]:
    """The folders of the runs of the models: OUT, or for several models folders of their names in it."""
    from adaptdel.attacks.attack_run import is_attack_run

    if len(models) == 1:
        return [out]
    if is_attack_run(out):
        raise ValueError(f"{out}: holds the run of one model: choose another --out for several")
    names = [Path(model).absolute().name for model in models]
    for model, name in zip(models, names, strict=True):
        if names.count(name) > 1:
            raise ValueError(f"{model}: two models are called {name!r}, after which their runs in OUT are named")
    return [out / name for name in names]


def _attacked(model: str, options: dict[str, Any]) -> tuple[Path, dict[str, str]]:
    """The folder of a model, and the columns of its data."""
    from adaptdel.models.model_files import data_columns

    folder = Path(model)
    if not (folder / "adaptdel.json").exists():
        raise ValueError(f"{model}: not the folder of a model, which adaptdel train writes")
    return folder, data_columns(folder, options["text_column"], options["label_column"])


def _check_used(recipe: str, given: set[str]) -> None:
    """Raise for an option that a single recipe would ignore."""
    from adaptdel.attacks.recipes import TEXTATTACK, USED_PARTS

    if recipe == "all":
        return
    ignored = [name for name in (_TEXTATTACK_ONLY if recipe == "adaptive" else _ADAPTIVE_ONLY) if name in given]
    ignored += [part for part in _PARTS if part in given and part not in USED_PARTS[recipe]]
    if ignored:
        option = f"--{ignored[0].replace('_', '-')}"
        users = [name for name in TEXTATTACK if ignored[0] in USED_PARTS[name]] if ignored[0] in _PARTS else []
        users = users or (["adaptive"] if ignored[0] in _ADAPTIVE_ONLY else list(TEXTATTACK))
        raise ValueError(f"{option} has no effect on the recipe {recipe!r}, only on {', '.join(users)}: leave it out")
