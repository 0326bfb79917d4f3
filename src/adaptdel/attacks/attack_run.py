"""Attack a data file into a run folder, which is resumable.

A finished run is ``manifest.json`` and ``attacks.jsonl`` with a record for each input; an unfinished one has a store
in place of the records.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from adaptdel.attacks.adaptive import OUTCOMES
from adaptdel.attacks.outcomes import ERROR, AttackRecord, measure_attack
from adaptdel.attacks.recipes import (
    ADAPTIVE,
    RECIPES,
    AttackedModel,
    AttackedSource,
    AttackPlan,
    InputAttack,
    LocalSource,
)
from adaptdel.attacks.tasks import AttackTask
from adaptdel.core.checks import check_choice, check_fields
from adaptdel.engines.engine import Engine
from adaptdel.engines.start import ENGINE, EngineSettings, start_engine
from adaptdel.files import parse_object, read_json, write_json, write_text
from adaptdel.hyperparameters import ATTACK, AttackSettings
from adaptdel.progress import ProgressBar, reporter
from adaptdel.runs.inputs import LabelMap, RunInput, Source, inputs, survey
from adaptdel.runs.manifest import session, timestamp
from adaptdel.store import FULL, Store, check_same_job, delete_store, locked, read_records
from adaptdel.tables import percent
from adaptdel.text.units import Unit

MANIFEST, RECORDS, STORE = "manifest.json", "attacks.jsonl", "unfinished.sqlite"
FORMAT = "adaptdel attack 1"
_JOB = {"kind": "attack"}
_SAME = (
    "recipe",
    "model_hash",
    "noise",
    "unit",
    "ops",
    "threshold",
    "settings",
    "data",
    "vocabulary",
    "parts",
    "fresh",
)
_FIELDS = {
    "id": "a text?", "row": "a whole number", "truth": "a text", "answer": "a text", "outcome": "a text",
    "length": "a whole number", "radius": "a whole number", "queries": "a whole number", "votes": "a whole number",
    "seconds": "a number", "words_changed": "a whole number?", "distance": "a whole number?", "text": "a text?",
    "answer_after": "a text?", "verified": "true or false?", "covered": "true or false?",
}  # fmt: skip
_ERROR_FIELDS = {name: _FIELDS[name] for name in ("id", "row", "truth", "outcome")} | {"problem": "a text"}

Note = Callable[[str], None]


@dataclass(frozen=True)
class AttackJob:
    """A data set to attack.

    Attributes:
        model: the folder of the model, or another source such as a server.
        source: the data, with labels.
        out: the folder of the run; an unfinished run is resumed.
        recipe: the attack, one of `adaptdel.attacks.recipes.RECIPES`.
        settings: limits of the attack.
        ops: the operations that are certified and that the adaptive attack uses; None for the model's.
        vocabulary: texts whose words the adaptive attack writes; None for those of the data.
        parts: folders or names of the parts of a recipe.
        fresh: whether repeated queries of a text get fresh votes.
        engine: where to attack: in this process, in local workers or on a Ray cluster.
    """

    model: Path | AttackedSource
    source: Source
    out: Path
    recipe: str = ADAPTIVE
    settings: AttackSettings = ATTACK
    ops: str | None = None
    vocabulary: Source | None = None
    parts: dict[str, str] = field(default_factory=dict)
    fresh: bool = False
    engine: EngineSettings = ENGINE

    def __post_init__(self) -> None:
        check_choice("recipe", self.recipe, RECIPES)

    def plan(self) -> AttackPlan:
        """What is attacked, and how."""
        words = self.vocabulary or self.source
        source = LocalSource(self.model, self.ops) if isinstance(self.model, Path) else self.model
        return AttackPlan(source, self.recipe, self.settings, words, self.parts, self.fresh)


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
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder}: not a run of attacks: there is no {MANIFEST}") from None
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{path}: not the manifest of a run of attacks: the format must be {FORMAT!r}")
    try:
        kinds = {"recipe": "a text", "model": "an object", "data": "an object", "settings": "an object"}
        check_fields(manifest, kinds | {"finished": "a text?", "noise": "an object", "method": "a text?"})
    except ValueError as error:
        raise ValueError(f"{path}: not the manifest of a run of attacks: {error}") from None
    if manifest["finished"] is None:
        if not (folder / STORE).exists():
            return AttackRun(folder, manifest, [])
        return AttackRun(folder, manifest, _valid(read_records(folder / STORE)))
    records = []
    try:
        # Not splitlines, which also divides at characters within texts, such as U+0085.
        lines = (folder / RECORDS).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{folder / RECORDS}: cannot be read: {error}") from None
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_checked(parse_object(line, finite=True)))
        except ValueError as error:
            raise ValueError(f"{folder / RECORDS}, line {number}: not a record of an attack: {error}") from None
    return AttackRun(folder, manifest, records)


def _checked(record: dict[str, Any]) -> AttackRecord:
    failed = record.get("outcome") == ERROR
    check_fields(record, _ERROR_FIELDS if failed else _FIELDS)
    check_choice("outcome", record["outcome"], (*OUTCOMES, ERROR))
    return record


def _valid(numbered: Iterable[tuple[int, Any]]) -> list[AttackRecord]:
    """The valid records of a store; the inputs of others are attacked again."""
    records = []
    for number, record in numbered:
        with suppress(ValueError):
            if isinstance(record, dict) and _checked(record)["row"] == number:
                records.append(record)
    return records


def attack_data(job: AttackJob, *, note: Note = lambda text: None, progress: Any = "auto") -> AttackRun:
    """Attack a sample of a data file, or resume an unfinished run; a finished run is returned as it is."""
    plan = job.plan()
    model = plan.model.load(job.settings)
    manifest = _new_manifest(job, model)
    chosen = draw_inputs(job.source, LabelMap(manifest["classes"]), model.unit, job.settings, note)
    attack = InputAttack(model, plan)  # also with workers: a missing part is reported before anything is written
    _check_folder(job.out)
    task = AttackTask(None, attack.plan_for_workers()) if job.engine.is_distributed else AttackTask(None, plan, attack)
    del model, attack  # each worker loads its own
    with _folder(job.out):
        return _run(OpenRun(job, manifest, chosen), task, note, progress)


@contextmanager
def _folder(folder: Path) -> Iterator[None]:
    """Create and lock the folder of a run; if nothing is written, it is removed again. A full disk is named."""
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            yield
    except OSError as error:
        if error.errno in FULL:
            again = f"{AttackTask.kept}: run the same command again once there is space"
            raise ValueError(f"{folder}: the disk is full: {again}") from error
        raise
    finally:
        with suppress(OSError):
            for path in new:
                path.rmdir()


class OpenRun:
    """A run that is being made, in a folder that the caller has locked.

    Args:
        job: what is attacked.
        manifest: of a new run; that of an unfinished run is kept.
        chosen: the inputs.
    """

    def __init__(self, job: AttackJob, manifest: dict[str, Any], chosen: list[RunInput]) -> None:
        old = read_attack_run(job.out) if (job.out / MANIFEST).exists() else None
        if old is not None:
            known, asked = ({name: values.get(name) for name in _SAME} for values in (old.manifest, manifest))
            check_same_job(job.out, known, asked, "choose another folder for --out")
        if old is not None and old.finished:
            delete_store(job.out / STORE)  # of a process that was killed after it had written everything
        self.job, self.chosen = job, chosen
        self.finished = old if old is not None and old.finished else None
        self.manifest = manifest if old is None else old.manifest
        # inputs that ended their workers in an earlier session are tried again
        self.records = {record["row"]: record for record in (old.records if old else []) if record["outcome"] != ERROR}

    @property
    def left(self) -> list[RunInput]:
        """The inputs that are not yet attacked."""
        return [run_input for run_input in self.chosen if run_input.row not in self.records]

    def open(self) -> Store:
        """Write the manifest with a new session, and open the store of the records."""
        self.manifest["sessions"] = [*self.manifest["sessions"], session(self.job.engine, len(self.chosen))]
        write_json(self.job.out / MANIFEST, self.manifest)
        return Store(self.job.out / STORE, _JOB)

    def put(self, store: Store, record: AttackRecord) -> None:
        """Add a record."""
        store.put(record["row"], record)
        self.records[record["row"]] = record

    def finish(self, store: Store) -> AttackRun:
        """Write the records and the measures, when every input is attacked, and delete the store."""
        ordered = [self.records[run_input.row] for run_input in self.chosen]
        lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in ordered)
        store.flush()
        write_text(self.job.out / RECORDS, lines)
        self.manifest |= {"totals": measure_attack(ordered), "finished": timestamp()}
        write_json(self.job.out / MANIFEST, self.manifest)
        store.delete()
        self.finished = AttackRun(self.job.out, self.manifest, ordered)
        return self.finished


def _run(run: OpenRun, task: AttackTask, note: Note, progress: Any) -> AttackRun:
    if run.finished is not None:
        return run.finished
    report, left = reporter(progress, "inputs"), run.left
    # the engine is the first: if it cannot start, nothing is written
    with (
        start_engine(run.job.engine) if left else nullcontext() as engine,
        run.open() as store,
        closing(_attacked(engine, task, left, note)) as results,
    ):
        for record in results:
            run.put(store, record)
            if isinstance(report, ProgressBar):
                report.note(_describe(run.records.values()))
            if report is not None:
                report(len(run.records), len(run.chosen))
        return run.finish(store)


def attack_together(
    jobs: Sequence[AttackJob], *, note: Note = lambda text: None, progress: Any = "auto"
) -> list[AttackRun]:
    """Attack several models in this process, all on one input before the next; the runs are those of `attack_data`.

    What a recipe can do with a text, such as the words that a masked language model predicts, is then computed once for
    all models. Unfinished runs are resumed.
    """
    folders = [job.out.resolve() for job in jobs]
    repeated = next((folder for folder in folders if folders.count(folder) > 1), None)
    if repeated is not None:
        raise ValueError(f"{repeated}: two runs cannot have the same folder")
    if any((job.recipe, job.parts, job.engine) != (jobs[0].recipe, jobs[0].parts, ENGINE) for job in jobs):
        raise ValueError("models are attacked together with one recipe, with the same parts, in this process")
    shared: dict[str, Any] = {}
    samples: dict[str, list[RunInput]] = {}
    loaded: list[tuple[AttackJob, dict[str, Any], list[RunInput], InputAttack]] = []
    for job in jobs:  # everything is loaded before anything is written
        plan = replace(job.plan(), shared=shared)
        model = plan.model.load(job.settings)
        manifest = _new_manifest(job, model)
        sample = json.dumps([manifest[name] for name in ("data", "classes", "unit", "settings")])
        if sample not in samples:
            labels = LabelMap(manifest["classes"])
            samples[sample] = draw_inputs(job.source, labels, model.unit, job.settings, note)
        _check_folder(job.out)
        loaded.append((job, manifest, samples[sample], InputAttack(model, plan)))
    with ExitStack() as stack:
        runs: list[OpenRun] = []
        for job, manifest, chosen, _ in loaded:
            stack.enter_context(_folder(job.out))
            runs.append(OpenRun(job, manifest, chosen))
        stores = [None if run.finished else stack.enter_context(run.open()) for run in runs]
        left = [{run_input.row: run_input for run_input in run.left} for run in runs]
        report = reporter(progress, "attacks")
        for row in sorted({row for inputs in left for row in inputs}):
            for run, store, inputs, (_, _, _, attack) in zip(runs, stores, left, loaded, strict=True):
                if store is not None and row in inputs:
                    run.put(store, attack(inputs[row]))
                    if len(run.records) == len(run.chosen):
                        run.finish(store)
                    if report is not None:
                        report(sum(len(run.records) for run in runs), sum(len(run.chosen) for run in runs))
        return [run.finished or run.finish(cast(Store, store)) for run, store in zip(runs, stores, strict=True)]


def _attacked(
    engine: Engine | None, task: AttackTask, inputs: list[RunInput], note: Note
) -> Generator[AttackRecord, None, None]:
    """Attack the inputs on the engine; it is None if there are none."""
    if engine is None:
        return
    if engine.description is not None:
        note(engine.description)
    for record in engine.map(task, inputs, len(inputs)):
        if record["outcome"] == ERROR:
            note(f"row {record['row']}: {record['problem']}: it is left out of all measures")
        yield record


def _describe(records: Iterable[AttackRecord]) -> str:
    robust = measure_attack(list(records))["robust_accuracy"]
    return "" if robust is None else f"robust accuracy {percent(robust)}"


def draw_inputs(
    source: Source, label_map: LabelMap, unit: Unit, settings: AttackSettings, note: Note
) -> list[RunInput]:
    """A random sample of the labelled inputs with words, in the order of the data.

    Of the other inputs, only the number of the row is kept in memory.
    """
    counts = survey(source, label_map, None)
    usable, wordless = array("q"), 0
    with counts.repeats as repeats:
        for row in inputs(source, label_map, None, repeats):
            if isinstance(row, RunInput) and row.label is not None:
                if unit.split(row.text):
                    usable.append(row.row)
                else:
                    wordless += 1
        if not counts.labelled:
            column = repr(source.label)
            raise ValueError(f"{source.name}: an attack needs labels, and no row has one in the column {column}")
        if not usable:
            raise ValueError(f"{source.name}: no labelled text has words to attack")
        if wordless:
            note(f"{source.name}: {wordless} texts without words are left out")
        order = np.random.Generator(np.random.Philox(settings.seed)).permutation(len(usable))[: settings.inputs]
        chosen = {usable[place] for place in order.tolist()}
        rows = inputs(source, label_map, max(chosen), repeats)
        return [row for row in rows if isinstance(row, RunInput) and row.row in chosen]


def _check_folder(folder: Path) -> None:
    file = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
    if file is not None:
        raise ValueError(f"{file}: must be a folder for the run, got a file")
    if folder.exists() and not is_attack_run(folder) and any(folder.iterdir()):
        raise ValueError(f"{folder}: holds something that is not a run of attacks: choose another --out")


def _new_manifest(job: AttackJob, model: AttackedModel) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "recipe": job.recipe,
        **model.description(),
        "settings": asdict(job.settings),
        "data": job.source.identity(),
        "vocabulary": None if job.vocabulary is None else job.vocabulary.identity(),
        "parts": dict(job.parts),
        "fresh": job.fresh,
        "started": timestamp(),
        "finished": None,
        "sessions": [],
        "totals": None,
    }
