"""Attack a data file into a run folder, which is resumable.

A finished run is ``manifest.json`` and ``attacks.jsonl`` with a record for each input; an unfinished one has a store
in place of the records.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from adaptdel.attacks.adaptive import AdaptiveAttack, edit_distance, padded, paddings_of, vocabulary_of
from adaptdel.attacks.outcomes import (
    ERROR,
    FAILURE,
    OUTCOMES,
    SKIPPED,
    SUCCESS,
    TIMEOUT,
    AttackRecord,
    attempt,
    measure_attack,
    robustness_curves,
)
from adaptdel.attacks.target import Target, TimeLimitReached
from adaptdel.attacks.textattack import TEXTATTACK, USED_PARTS, TextAttackAttacker
from adaptdel.certification.evidence import Plan
from adaptdel.core.checks import check_choice, check_fields
from adaptdel.core.plain import from_plain, to_plain
from adaptdel.core.threat import Threat
from adaptdel.files import check_regular, parse_object, read_json, write_json, write_text
from adaptdel.models.estimator import TextEstimator
from adaptdel.progress import reporter
from adaptdel.runs.engine import ENGINE, EngineSettings, ModelSource, Task, Work, start_engine
from adaptdel.runs.inputs import DataFacts, LabelMap, RunInput, Source, inputs
from adaptdel.runs.manifest import ModelFacts, Session, session, timestamp
from adaptdel.runs.storage import run_folder
from adaptdel.settings import ATTACK, AttackSettings
from adaptdel.store import Store, check_same_job, delete_store, read_records
from adaptdel.text.data import label_text
from adaptdel.text.units import Tokens, Unit

ADAPTIVE, PADDING = "adaptive", "padding"
RECIPES = (ADAPTIVE, PADDING, *TEXTATTACK)
TEXT_UNITS = ("word", "char")
MANIFEST, RECORDS, STORE = "manifest.json", "attacks.jsonl", "unfinished.sqlite"
FORMAT = "adaptdel attack 2"
_FIELDS = {
    "id": "a text?", "row": "an integer", "truth": "a text", "answer": "a text", "outcome": "a text",
    "length": "an integer", "radius": "an integer", "queries": "an integer", "votes": "an integer",
    "seconds": "a number", "words_changed": "an integer?", "distance": "an integer?", "text": "a text?",
    "answer_after": "a text?", "verified": "true or false?", "covered": "true or false?",
}  # fmt: skip
_ERROR_FIELDS = {name: _FIELDS[name] for name in ("id", "row", "truth", "outcome")} | {"problem": "a text"}

Note = Callable[[str], None]


@dataclass(frozen=True)
class AttackJob:
    """A data set to attack."""

    model: Path  # the folder of the model
    source: Source  # the data, with labels
    out: Path  # the folder of the run; an unfinished run is resumed
    recipe: str = ADAPTIVE  # one of `RECIPES`
    settings: AttackSettings = ATTACK  # limits of the attack
    ops: Threat | None = None  # that are certified and that the adaptive attack uses; None for the model's
    vocabulary: Source | None = None  # texts of which the attack knows the words; None for those of the data
    parts: dict[str, str] = field(default_factory=dict)  # folders or names of the parts of a recipe
    engine: EngineSettings = ENGINE  # where to attack: in this process, in local workers or on a Ray cluster

    def __post_init__(self) -> None:
        check_choice("recipe", self.recipe, RECIPES)
        for part in self.parts:
            check_choice(f"a part of the recipe {self.recipe!r}", part, USED_PARTS.get(self.recipe, ()))
        if self.vocabulary is not None and self.recipe not in (ADAPTIVE, PADDING):
            raise ValueError(f"vocabulary is only for the recipes {ADAPTIVE} and {PADDING}, got {self.recipe!r}")


class InputAttack:
    """Attack one input after the other by one of `RECIPES`, with a certificate for each.

    ``words`` are what the adaptive attack or the padding attack writes, ``parts`` are of a recipe of TextAttack.
    """

    def __init__(self, target: Target, recipe: str, words: Any, parts: Mapping[str, str]) -> None:
        self.target, self.pads = target, recipe == PADDING
        self.attack: Callable[[str, Tokens, int], AttackRecord]
        if self.pads:
            self.attack = partial(_padding, target, words)
        elif recipe != ADAPTIVE:
            if target.unit.kind != "word":
                raise ValueError(f"recipes of TextAttack edit words, got a model whose unit is {target.unit.kind!r}")
            self.attack = TextAttackAttacker(target, recipe, parts)
        elif target.noise is not None:
            assert words is not None
            self.attack = partial(_adaptive, AdaptiveAttack(target, words))
        elif target.oracle.known_tokens() is not None:
            self.attack = partial(_counterexample, target)
        else:
            raise ValueError(
                "the adaptive attack needs a model whose noisy copies vote, or one that knows the effect of single "
                f"tokens, got neither: choose another recipe, such as {TEXTATTACK[0]}"
            )

    def __call__(self, run_input: RunInput) -> AttackRecord:
        """The record of an input: the outcome, the certificate, the attacked text and its true edit distance."""
        target, ops = self.target, self.target.plan.ops
        label = target.labels.index(run_input.label)
        (certificate,) = target.certificates([run_input.text], f"row {run_input.row}")
        radius = certificate.padded_radius if self.pads else certificate.radius
        tokens = target.unit.split(run_input.text)
        started = time.perf_counter()
        target.begin()
        record = self.attack(run_input.text, tokens, label) | {
            "id": run_input.id,
            "row": run_input.row,
            "truth": label_text(run_input.label),
            "answer": label_text(certificate.label),
            "length": len(tokens),
            "radius": radius if certificate.answer == label else -1,
            "seconds": time.perf_counter() - started,
            "distance": None,
            "answer_after": None,
            "covered": None,
        }
        if record["outcome"] == SUCCESS:
            attacked = target.unit.split(record["text"])
            distance = 0 if self.pads else edit_distance(tokens, attacked, ops)  # padding is no edit
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
    spent = {"queries": result.queries, "votes": result.votes}
    if result.tokens is None:
        return attempt(result.outcome, **spent)
    text = target.unit.join(result.tokens)
    # fresh votes have verified it, within the attack
    return attempt(result.outcome, **spent, text=text, words_changed=result.distance, verified=True)


def _padding(
    target: Target, paddings: Mapping[int, Sequence[Tokens]], text: str, tokens: Tokens, label: int
) -> AttackRecord:
    """The shortest padding, of 10 words, 100, 1,000 and so on, that changes the answer."""
    if target.verify(tokens, label, phase="clean").changed:
        return attempt(SKIPPED, queries=1, votes=target.votes)
    longest = target.settings.padding
    sizes = [*(10**power for power in range(1, len(str(longest))) if 10**power < longest), longest]
    try:
        for size, padding, glued in product(sizes, paddings[label], (False, True)):
            attacked = padded(text, padding[:size], target.unit, glued=glued)
            is_changed = target.query([attacked])[0].argmax() != label
            if is_changed and target.verify(target.unit.split(attacked), label).changed:
                spent = {"queries": target.queries, "votes": target.votes}
                return attempt(SUCCESS, **spent, text=attacked, words_changed=2 * size, verified=True)
    except TimeLimitReached:
        return attempt(TIMEOUT, queries=target.queries, votes=target.votes)
    return attempt(FAILURE, queries=target.queries, votes=target.votes)


def _counterexample(target: Target, text: str, tokens: Tokens, label: int) -> AttackRecord:
    """The closest text with another answer, where the model knows it."""
    (certificate,) = target.certificates([text])
    if certificate.answer != label:
        return attempt(SKIPPED, queries=1)
    known, budget = target.oracle.against_known(certificate), target.settings.budget
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
    words: Any = None  # what the adaptive attack or the padding attack writes
    parts: Mapping[str, str] = field(default_factory=dict)  # of a recipe of TextAttack
    attack: InputAttack | None = None  # what to attack with in this process; None in workers

    def load(self) -> Work:
        """A function from inputs to records."""
        attack = self.attack
        if attack is None:
            assert self.source is not None
            target = Target(self.source.load().certifier(), self.settings)
            attack = InputAttack(target, self.recipe, self.words, self.parts)
        return partial(map, attack)

    def failed(self, item: Any, reason: str) -> AttackRecord:
        """A record that states the problem."""
        return {"id": item.id, "row": item.row, "truth": label_text(item.label), "outcome": ERROR, "problem": reason}

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
class AttackManifest:
    """What a run of attacks is; `adaptdel.runs.manifest.Manifest` and `AttackJob` document the fields."""

    recipe: str
    model_hash: str
    unit: dict[str, Any] | None
    classes: list[Any]
    plan: Plan
    settings: AttackSettings
    model: ModelFacts
    data: DataFacts
    vocabulary: DataFacts | None
    parts: dict[str, str]
    started: str
    sessions: list[Session] = field(default_factory=list)
    finished: str | None = None
    totals: dict[str, Any] | None = None
    format: str = FORMAT

    def job(self) -> dict[str, Any]:
        """What a run can only be resumed with."""
        names = ("recipe", "model_hash", "unit", "plan", "settings", "data", "vocabulary", "parts")
        return {name: to_plain(getattr(self, name)) for name in names}


@dataclass(frozen=True)
class AttackRun:
    """The manifest and the records of a run, finished or not."""

    folder: Path
    manifest: AttackManifest
    records: list[AttackRecord]

    @property
    def finished(self) -> bool:
        """Whether every input was attacked."""
        return self.manifest.finished is not None

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
        values = read_json(path, "the manifest of a run of attacks")
        check_regular(folder)
        check_choice("format", values.get("format"), (FORMAT,))
        manifest = from_plain(AttackManifest, values)
    except OSError as error:
        raise ValueError(f"{folder}: not a run of attacks: {path.name} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ValueError(f"{path}: not the manifest of a run of attacks: {error}") from None
    if manifest.finished is None:
        records = [record for _, record in read_records(folder / STORE)] if (folder / STORE).exists() else []
        return AttackRun(folder, manifest, records)
    try:
        # Not splitlines, which also divides at characters within texts, such as U+0085.
        lines = (folder / RECORDS).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder / RECORDS}: cannot be read: {error}") from None
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = parse_object(line, finite=True)
            check_fields(record, _ERROR_FIELDS if record.get("outcome") == ERROR else _FIELDS)
            check_choice("outcome", record["outcome"], (*OUTCOMES, ERROR))
        except ValueError as error:
            raise ValueError(f"{folder / RECORDS}, line {number}: not a record of an attack: {error}") from None
        records.append(record)
    return AttackRun(folder, manifest, records)


def attack_data(job: AttackJob, *, note: Note = lambda text: None, progress: Any = "auto") -> AttackRun:
    """Attack a sample of a data file, or resume an unfinished run; a finished run is returned as it is."""
    model_source = ModelSource(job.model, {} if job.ops is None else {"ops": job.ops})
    model: TextEstimator = model_source.load()
    target = Target(model.certifier(), job.settings)
    if target.unit.kind not in TEXT_UNITS:
        raise ValueError(f"{job.model}: the model must be one of texts, got one whose unit is {target.unit.kind!r}")
    if job.vocabulary is not None and target.noise is None and job.recipe == ADAPTIVE:
        raise ValueError("vocabulary has no meaning for a model without noisy copies: leave it out")
    manifest = AttackManifest(
        recipe=job.recipe,
        model_hash=target.certifier.fingerprint,
        unit=target.unit.to_dict(),
        classes=target.labels,
        plan=target.plan,
        settings=job.settings,
        model=ModelFacts.of(str(job.model), model),
        data=job.source.facts(),
        vocabulary=None if job.vocabulary is None else job.vocabulary.facts(),
        parts=dict(job.parts),
        started=timestamp(),
    )
    protected = target.plan.protected if job.recipe == PADDING else None
    only = None if protected is None else target.labels[protected]
    chosen = draw_inputs(job.source, LabelMap(target.labels), target.unit, job.settings, note, only)
    words: Any = None
    if job.recipe == PADDING:
        words = paddings_of(target.certifier, job.vocabulary or job.source, job.settings)
    elif target.noise is not None and job.recipe == ADAPTIVE:
        words = vocabulary_of(target.certifier, job.vocabulary or job.source)
    attack = InputAttack(target, job.recipe, words, job.parts)  # before anything is written: a part may be missing
    model_source = replace(model_source, fingerprint=manifest.model_hash)
    local = None if job.engine.is_distributed else attack
    task = AttackTask(model_source, job.recipe, job.settings, words, job.parts, local)
    del model, target, attack  # each worker loads its own
    with run_folder(job.out, (MANIFEST, RECORDS), task.try_again):
        return _run(job, manifest, chosen, task, note, progress)


def _run(
    job: AttackJob, manifest: AttackManifest, chosen: list[RunInput], task: AttackTask, note: Note, progress: Any
) -> AttackRun:
    """Attack what is left in a folder that is locked."""
    records: dict[int, AttackRecord] = {}
    if (job.out / MANIFEST).exists():
        old = read_attack_run(job.out)
        check_same_job(job.out, old.manifest.job(), manifest.job(), "choose another folder for --out")
        manifest = old.manifest
        if old.finished:
            delete_store(job.out / STORE)  # of a process that was killed after it had written everything
            return old
        # inputs that ended their workers in an earlier session are tried again
        records = {record["row"]: record for record in old.records if record["outcome"] != ERROR}
    left = [run_input for run_input in chosen if run_input.row not in records]
    report = reporter(progress, "inputs")
    # the engine comes first: if it cannot start, nothing is written
    with start_engine(job.engine) if left else nullcontext() as engine:
        manifest = replace(manifest, sessions=[*manifest.sessions, session(job.engine, len(chosen))])
        write_json(job.out / MANIFEST, to_plain(manifest))
        if engine is not None and engine.description is not None:
            note(engine.description)
        with Store(job.out / STORE, {"kind": "attack"}) as store:
            for record in () if engine is None else engine.map(task, left, len(left)):
                if record["outcome"] == ERROR:
                    note(f"row {record['row']}: {record['problem']}: it is left out of all measures")
                store.put(record["row"], record)
                records[record["row"]] = record
                if report is not None:
                    report(len(records), len(chosen))
            ordered = [records[run_input.row] for run_input in chosen]
            store.flush()
            write_text(job.out / RECORDS, "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in ordered))
            manifest = replace(manifest, totals=measure_attack(ordered), finished=timestamp())
            write_json(job.out / MANIFEST, to_plain(manifest))
            store.delete()
    return AttackRun(job.out, manifest, ordered)


def draw_inputs(
    source: Source, label_map: LabelMap, unit: Unit, settings: AttackSettings, note: Note, only: Any = None
) -> list[RunInput]:
    """A random sample of the labelled inputs with words, in the order of the data; ``only`` those of a class, if given.

    Nobody pads a text to get it flagged: of a model that protects a class, only the texts of this class are padded.
    """
    rows = inputs(source, label_map, None)
    labelled = [
        row for row in rows if isinstance(row, RunInput) and row.label is not None and only in (None, row.label)
    ]
    usable = [row for row in labelled if unit.split(row.text)]
    if not usable:
        raise ValueError(
            f"{source.name}: holds no text with words and one of the model's labels in the column {source.label!r}"
        )
    if wordless := len(labelled) - len(usable):
        note(f"{source.name}: {wordless} texts without words are left out")
    order = np.random.Generator(np.random.Philox(settings.seed)).permutation(len(usable))[: settings.inputs]
    return [usable[place] for place in sorted(order.tolist())]
