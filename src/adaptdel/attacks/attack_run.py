"""Attack a data file into a run folder, which is resumable.

A finished run is ``manifest.json`` and ``attacks.jsonl`` with a record for each input; an unfinished one has a store
in place of the records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from adaptdel.attacks.adaptive import AdaptiveAttack, Vocabulary, edit_distance, vocabulary_of
from adaptdel.attacks.outcomes import (
    ERROR,
    FAILURE,
    OUTCOMES,
    SKIPPED,
    SUCCESS,
    AttackRecord,
    attempt,
    measure_attack,
    robustness_curves,
)
from adaptdel.attacks.target import ExactTarget, SmoothedTarget, Target, target_of
from adaptdel.attacks.textattack import TEXTATTACK, USED_PARTS, TextAttackAttacker
from adaptdel.classifiers.base import stable_repr
from adaptdel.core.checks import check_choice, check_fields
from adaptdel.files import check_regular, parse_object, read_json, write_json, write_text
from adaptdel.progress import reporter
from adaptdel.runs.engine import ENGINE, EngineSettings, ModelSource, Task, Work, start_engine
from adaptdel.runs.inputs import LabelMap, RunInput, Source, inputs
from adaptdel.runs.manifest import check_data_and_sessions, session, timestamp
from adaptdel.runs.records import label_text
from adaptdel.runs.storage import run_folder
from adaptdel.settings import ATTACK, AttackSettings
from adaptdel.store import Store, check_same_job, delete_store, read_records
from adaptdel.text.units import Tokens, Unit, check_unit

ADAPTIVE = "adaptive"
RECIPES = (ADAPTIVE, *TEXTATTACK)
TEXT_UNITS = ("word", "char")
MANIFEST, RECORDS, STORE = "manifest.json", "attacks.jsonl", "unfinished.sqlite"
FORMAT = "adaptdel attack 1"
_JOB = {"kind": "attack"}
_SAME = ("recipe", "model_hash", "noise", "unit", "ops", "threshold", "settings", "data", "vocabulary", "parts")
_FIELDS = {
    "id": "a text?", "row": "an integer", "truth": "a text", "answer": "a text", "outcome": "a text",
    "length": "an integer", "radius": "an integer", "queries": "an integer", "votes": "an integer",
    "seconds": "a number", "words_changed": "an integer?", "distance": "an integer?", "text": "a text?",
    "answer_after": "a text?", "verified": "true or false?", "covered": "true or false?",
}  # fmt: skip
_KINDS = {
    "recipe": "a text", "model": "an object", "data": "an object", "settings": "an object", "parts": "an object",
    "sessions": "a list", "finished": "a text?", "noise": "an object?", "method": "a text?",
}  # fmt: skip
_ERROR_FIELDS = {name: _FIELDS[name] for name in ("id", "row", "truth", "outcome")} | {"problem": "a text"}

Note = Callable[[str], None]


@dataclass(frozen=True)
class AttackJob:
    """A data set to attack.

    Attributes:
        model: the folder of the model.
        source: the data, with labels.
        out: the folder of the run; an unfinished run is resumed.
        recipe: the attack, one of `RECIPES`.
        settings: limits of the attack.
        ops: the operations that are certified and that the adaptive attack uses; None for the model's.
        vocabulary: texts whose words the adaptive attack writes; None for those of the data.
        parts: folders or names of the parts of a recipe.
        engine: where to attack: in this process, in local workers or on a Ray cluster.
    """

    model: Path
    source: Source
    out: Path
    recipe: str = ADAPTIVE
    settings: AttackSettings = ATTACK
    ops: str | None = None
    vocabulary: Source | None = None
    parts: dict[str, str] = field(default_factory=dict)
    engine: EngineSettings = ENGINE

    def __post_init__(self) -> None:
        check_choice("recipe", self.recipe, RECIPES)
        for part in self.parts:
            check_choice(f"a part of the recipe {self.recipe!r}", part, USED_PARTS.get(self.recipe, ()))
        if self.vocabulary is not None and self.recipe != ADAPTIVE:
            raise ValueError(f"vocabulary is only for the recipe {ADAPTIVE!r}, got {self.recipe!r}")


class InputAttack:
    """Attack one input after the other by one of `RECIPES`, with a certificate for each.

    ``words`` are what the adaptive attack writes, ``parts`` are of a recipe of TextAttack.
    """

    def __init__(self, target: Target, recipe: str, words: Vocabulary | None, parts: Mapping[str, str]) -> None:
        self.target = target
        self.attack: Callable[[str, Tokens, int], AttackRecord]
        if recipe != ADAPTIVE:
            if target.unit.kind != "word":
                raise ValueError(f"recipes of TextAttack edit words, got a model whose unit is {target.unit.kind!r}")
            self.attack = TextAttackAttacker(target, recipe, parts)
        elif isinstance(target, ExactTarget):
            if target.model.base_classifier().ngram > 1:
                raise ValueError(
                    "the adaptive attack needs a model whose single tokens have scores, got one of runs of tokens"
                )
            self.attack = partial(_counterexample, target)
        else:
            assert isinstance(target, SmoothedTarget)
            assert words is not None
            self.attack = partial(_adaptive, AdaptiveAttack(target, words))

    def __call__(self, run_input: RunInput) -> AttackRecord:
        """The record of an input: the outcome, the certificate, the attacked text and its true edit distance."""
        target = self.target
        label = target.labels.index(run_input.label)
        answer, radius = target.certify(run_input.text, f"row {run_input.row}")
        tokens = target.unit.split(run_input.text)
        started = time.perf_counter()
        target.begin()
        record = self.attack(run_input.text, tokens, label)
        record |= {
            "id": run_input.id,
            "row": run_input.row,
            "truth": label_text(run_input.label),
            "answer": label_text(target.labels[answer]),
            "length": len(tokens),
            "radius": radius if answer == label else -1,
            "seconds": time.perf_counter() - started,
            "distance": None,
            "answer_after": None,
            "covered": None,
        }
        if record["outcome"] == SUCCESS:
            attacked = target.unit.split(record["text"])
            distance = edit_distance(tokens, attacked, target.ops)
            checked = target.verify(attacked, label, phase="confirm")
            record["covered"] = distance != inf
            record["distance"] = int(distance if record["covered"] else edit_distance(tokens, attacked))
            record["verified"] = record["verified"] or checked.changed is True
            record["answer_after"] = label_text(target.labels[checked.answer])
        return record


def _adaptive(attack: AdaptiveAttack, text: str, tokens: Tokens, label: int) -> AttackRecord:
    """Attack unless the smoothed answer is provably another one already."""
    target = attack.target
    if target.verify(tokens, label, phase="clean").changed:
        return attempt(SKIPPED, queries=1, votes=target.votes)
    result = attack(tokens, label)
    if result.tokens is None:
        return attempt(result.outcome, queries=result.queries, votes=result.votes)
    return attempt(
        result.outcome,
        queries=result.queries,
        votes=result.votes,
        text=target.unit.join(result.tokens),
        words_changed=result.distance,
        verified=True,  # by fresh votes, within the attack
    )


def _counterexample(target: ExactTarget, text: str, tokens: Tokens, label: int) -> AttackRecord:
    """The closest text with another answer that the tokens of an additive classifier make."""
    certificate = target.certificate(text)
    if certificate.answer != label:
        return attempt(SKIPPED, queries=1)
    known, budget = target.against_known(certificate), target.settings.budget
    attacked = known.counterexample() if budget is None or known.radius < budget else None
    if attacked is None:
        return attempt(FAILURE, queries=1)
    return attempt(SUCCESS, queries=1, text=attacked, words_changed=known.radius + 1)


@dataclass(frozen=True)
class AttackTask(Task):
    """Attack inputs; results are the records of a run."""

    kept: ClassVar[str] = "everything attacked so far is kept"
    chunk: ClassVar[int] = 1  # an attack takes seconds to hours, and its record is stored when it ends

    recipe: str = ADAPTIVE  # one of `RECIPES`
    settings: AttackSettings = ATTACK  # limits of the attack
    words: Vocabulary | None = None  # what the adaptive attack writes
    parts: Mapping[str, str] = field(default_factory=dict)  # of a recipe of TextAttack
    attack: InputAttack | None = None  # what to attack with in this process; None in workers

    def load(self) -> Work:
        """A function from inputs to records."""
        attack = self.attack
        if attack is None:
            assert self.source is not None
            target = target_of(self.source.load(), self.settings)
            attack = InputAttack(target, self.recipe, self.words, self.parts)
        return partial(map, attack)

    def failed(self, item: Any, reason: str) -> AttackRecord:
        """A record that states the problem."""
        problem = {"outcome": ERROR, "problem": reason}
        return {"id": item.id, "row": item.row, "truth": label_text(item.label), **problem}

    def paths(self) -> tuple[Path, ...]:
        """The folder of the model, and the parts that are files or folders here."""
        parts = (Path(value) for _, value in sorted(self.parts.items()))
        return (*super().paths(), *(path for path in parts if path.exists()))

    def at(self, copies: Mapping[Path, Path]) -> AttackTask:
        """The same attack with copies of the model and the parts."""
        assert self.source is not None
        parts = {name: str(copies.get(Path(value), value)) for name, value in self.parts.items()}
        return replace(self, source=self.source.at(copies), parts=parts)


@dataclass(frozen=True)
class AttackRun:
    """The manifest and the records of a run, finished or not."""

    folder: Path
    manifest: dict[str, Any]
    records: list[AttackRecord]

    @property
    def finished(self) -> bool:
        """Whether every input was attacked."""
        return self.manifest["finished"] is not None

    @property
    def measures(self) -> dict[str, Any]:
        """The measures of the records."""
        return measure_attack(self.records)

    @property
    def curve(self) -> list[dict[str, Any]]:
        """Accuracies by number of edits."""
        return robustness_curves(self.records)


def is_attack_run(folder: Path) -> bool:
    """Whether a folder holds a run of attacks."""
    with suppress(OSError, ValueError):
        return read_json(folder / MANIFEST, "a manifest").get("format") == FORMAT
    return False


def read_attack_run(folder: Path) -> AttackRun:
    """Read a run of attacks; ValueError says what is wrong with it."""
    path = folder / MANIFEST
    try:
        manifest = read_json(path, "the manifest of a run of attacks")
        check_regular(folder)
    except OSError as error:
        raise ValueError(f"{folder}: not a run of attacks: {path.name} cannot be read ({error.strerror})") from None
    try:
        check_choice("format", manifest.get("format"), (FORMAT,))
        check_fields(manifest, _KINDS)
        check_fields(manifest["model"], {"path": "a text"})
        check_fields(manifest["parts"], dict.fromkeys(manifest["parts"], "a text"))
        check_data_and_sessions(manifest)
    except ValueError as error:
        raise ValueError(f"{path}: not the manifest of a run of attacks: {error}") from None
    if manifest["finished"] is None:
        records = [record for _, record in read_records(folder / STORE)] if (folder / STORE).exists() else []
        return AttackRun(folder, manifest, records)
    try:
        # Not splitlines, which also divides at characters within texts, such as U+0085.
        lines = (folder / RECORDS).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder / RECORDS}: cannot be read: {error}") from None
    return AttackRun(folder, manifest, [_checked(line, n, folder / RECORDS) for n, line in enumerate(lines, start=1)])


def _checked(line: str, number: int, path: Path) -> AttackRecord:
    """The record on a line of a file."""
    try:
        record = parse_object(line, finite=True)
        check_fields(record, _ERROR_FIELDS if record.get("outcome") == ERROR else _FIELDS)
        check_choice("outcome", record["outcome"], (*OUTCOMES, ERROR))
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: not a record of an attack: {error}") from None
    return record


def attack_data(job: AttackJob, *, note: Note = lambda text: None, progress: Any = "auto") -> AttackRun:
    """Attack a sample of a data file, or resume an unfinished run; a finished run is returned as it is."""
    if not (job.model / "adaptdel.json").exists():
        raise ValueError(f"{job.model}: not the folder of a model: adaptdel train writes one")
    model_source = ModelSource(job.model, {} if job.ops is None else {"ops": job.ops})
    model = model_source.load()
    unit = check_unit(model.unit)
    if unit.kind not in TEXT_UNITS:
        raise ValueError(
            f"{job.model}: the model must be a classifier of texts to be attacked, got one whose unit is {unit.kind!r}"
        )
    target = target_of(model, job.settings)
    if isinstance(target, ExactTarget) and job.vocabulary is not None:
        raise ValueError(
            "vocabulary has no meaning for an additive model, whose weights name the worst words: leave it out"
        )
    manifest = _new_manifest(job, model)
    chosen = draw_inputs(job.source, LabelMap(target.labels), unit, job.settings, note)
    words = None
    if isinstance(target, SmoothedTarget) and job.recipe == ADAPTIVE:
        words = vocabulary_of(target.certifier, job.vocabulary or job.source)
    attack = InputAttack(target, job.recipe, words, job.parts)  # before anything is written: a part may be missing
    model_source = replace(model_source, fingerprint=manifest["model_hash"])
    local = None if job.engine.is_distributed else attack
    task = AttackTask(model_source, job.recipe, job.settings, words, job.parts, local)
    del model, target, attack  # each worker loads its own
    with run_folder(job.out, (MANIFEST, RECORDS), task.try_again):
        return _run(job, manifest, chosen, task, note, progress)


def _run(
    job: AttackJob, manifest: dict[str, Any], chosen: list[RunInput], task: AttackTask, note: Note, progress: Any
) -> AttackRun:
    """Attack what is left in a folder that is locked."""
    records: dict[int, AttackRecord] = {}
    if (job.out / MANIFEST).exists():
        old = read_attack_run(job.out)
        known, asked = ({name: values.get(name) for name in _SAME} for values in (old.manifest, manifest))
        check_same_job(job.out, known, asked, "choose another folder for --out")
        manifest = old.manifest
        if old.finished:
            delete_store(job.out / STORE)  # of a process that was killed after it had written everything
            return old
        # inputs that ended their workers in an earlier session are tried again
        records = {record["row"]: record for record in old.records if record["outcome"] != ERROR}
    left = [run_input for run_input in chosen if run_input.row not in records]
    report = reporter(progress, "inputs")
    # the engine is the first: if it cannot start, nothing is written
    with start_engine(job.engine) if left else nullcontext() as engine:
        manifest["sessions"] = [*manifest["sessions"], session(job.engine, len(chosen))]
        write_json(job.out / MANIFEST, manifest)
        if engine is not None and engine.description is not None:
            note(engine.description)
        results = nullcontext(()) if engine is None else closing(engine.map(task, left, len(left)))
        with Store(job.out / STORE, _JOB) as store, results as attacked:
            for record in attacked:
                if record["outcome"] == ERROR:
                    note(f"row {record['row']}: {record['problem']}: it is left out of all measures")
                store.put(record["row"], record)
                records[record["row"]] = record
                if report is not None:
                    report(len(records), len(chosen))
            ordered = [records[run_input.row] for run_input in chosen]
            store.flush()
            lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in ordered)
            write_text(job.out / RECORDS, lines)
            manifest |= {"totals": measure_attack(ordered), "finished": timestamp()}
            write_json(job.out / MANIFEST, manifest)
            store.delete()
    return AttackRun(job.out, manifest, ordered)


def draw_inputs(
    source: Source, label_map: LabelMap, unit: Unit, settings: AttackSettings, note: Note
) -> list[RunInput]:
    """A random sample of the labelled inputs with words, in the order of the data."""
    rows = inputs(source, label_map, None)
    labelled = [row for row in rows if isinstance(row, RunInput) and row.label is not None]
    usable = [row for row in labelled if unit.split(row.text)]
    if not usable:
        raise ValueError(
            f"{source.name}: holds no text with words and one of the model's labels in the column {source.label!r}"
        )
    if wordless := len(labelled) - len(usable):
        note(f"{source.name}: {wordless} texts without words are left out")
    order = np.random.Generator(np.random.Philox(settings.seed)).permutation(len(usable))[: settings.inputs]
    return [usable[place] for place in sorted(order.tolist())]


def _new_manifest(job: AttackJob, model: Any) -> dict[str, Any]:
    stated, base = model.run_settings(), model.base_classifier()
    return {
        "format": FORMAT,
        "recipe": job.recipe,
        "model": {"path": str(job.model), "base": stable_repr(base)},
        "method": stated.get("method", (getattr(model, "training_", None) or {}).get("method")),
        "model_hash": base.fingerprint(),
        "unit": check_unit(model.unit).to_dict(),
        "classes": list(base.classes_ or []),
        **{name: stated[name] for name in ("noise", "ops", "threshold", "alpha")},
        "settings": asdict(job.settings),
        "data": job.source.identity(),
        "vocabulary": None if job.vocabulary is None else job.vocabulary.identity(),
        "parts": dict(job.parts),
        "started": timestamp(),
        "finished": None,
        "sessions": [],
        "totals": None,
    }
