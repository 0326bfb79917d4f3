"""Certify a data file into a run, resumable; new radii from the votes of a run."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adaptdel.certification.certifier import Certifier
from adaptdel.classifiers.base import registered_modules
from adaptdel.core.bounds import BOUNDS
from adaptdel.core.checks import STEPS, TooMuchWork, check_alpha, check_choice, check_int, limited
from adaptdel.core.noise import noise_from_dict, registered_noise_modules
from adaptdel.core.radius import check_noise
from adaptdel.core.threat import Threat
from adaptdel.file_formats import standard_input
from adaptdel.files import replacing, replacing_folder, write_json
from adaptdel.measures import CLEAN_ACCURACY, MEAN_RADIUS
from adaptdel.model_files import data_columns
from adaptdel.progress import ProgressBar, reporter
from adaptdel.runs.inputs import InvalidRow, Known, LabelMap, MemorySource, RunInput, Source, Survey, inputs, survey
from adaptdel.runs.manifest import differences, limit_of, new_manifest, session, timestamp, versions
from adaptdel.runs.records import Record, Totals, certificate_of, label_of, problem_record, record_of
from adaptdel.runs.signature import SigningKey, drop_signature, sign_run
from adaptdel.runs.storage import (
    MANIFEST,
    RESTORE,
    Run,
    drop_store,
    fill_store,
    locked,
    open_store,
    read_manifest,
    read_run,
    remove_leftovers,
    run_records,
    write_tables,
)
from adaptdel.runs.workers import ModelSource, certify_here, certify_in_workers, with_settings
from adaptdel.settings import DATA
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.tables import number, percent
from adaptdel.working_store import FULL, WorkingStore

_log = logging.getLogger(__name__)


def describe(totals: Totals) -> str:
    """The results of an unfinished run so far, beside its progress bar.

    >>> from adaptdel.measures import AnswerCounts
    >>> describe(Totals(inputs=150, labelled=AnswerCounts(150, correct=120, certified=117, radius=600)))
    'clean accuracy 80.0%, mean certified radius 4.00'
    """
    parts = []
    if totals.clean_accuracy is not None:
        parts.append(f"{CLEAN_ACCURACY} {percent(totals.clean_accuracy)}")
    if totals.mean_radius is not None:
        parts.append(f"{MEAN_RADIUS} {number(totals.mean_radius)}")
    if totals.problems:
        parts.append(f"{totals.problems} not certified")
    return ", ".join(parts)


FAILURES = 25  # inputs that the model fails on one after the other: it is the model, then, and the run stops
REPEATED = 4  # inputs that a resumed run certifies again if the model has no fingerprint
_KEPT = "everything certified so far is kept: run the same command again"

Note = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """What is to be certified, by what, and how.

    Attributes:
        model: the folder of a model, or the model.
        source: the data.
        out: the folder of the run, new or to be gone on with.
        settings: what replaces the model's own: alpha, ops, bound, sampling, n_select, n_estimate, seed, threshold.
        limit: certify the first so many rows.
        workers: processes; 1 means this one.
        strict: stop at a row that cannot be certified, instead of noting it.
        key: sign the run with it once it is finished.
    """

    model: Path | SmoothedClassifier
    source: Source
    out: Path
    settings: dict[str, Any] = field(default_factory=dict)
    limit: int | None = None
    workers: int = 1
    strict: bool = False
    key: SigningKey | None = None

    def __post_init__(self) -> None:
        check_int("workers", self.workers, least=1)
        if self.limit is not None:
            check_int("limit", self.limit, least=1)


@dataclass(frozen=True)
class Result:
    """A finished run: its manifest, and whether it was finished already."""

    manifest: dict[str, Any]
    already_done: bool = False


def certify_data(order: Order, *, note: Note = lambda text: None, progress: Any = "auto") -> Result:
    """Certify, or go on with what was begun; a run that is finished already is left as it is.

    ``progress`` is True, False, "auto" (on a terminal) or a callable (done, total).
    ValueError if the folder holds a run of something else, if the data cannot be read or the disk is full.
    """
    with ExitStack() as resources:
        if isinstance(order.model, SmoothedClassifier):
            name = "a model in memory"
            model = with_settings(order.model, order.settings)
            model_source = None if order.workers == 1 else _saved_for_workers(model, resources)
        else:
            name = str(order.model)
            model_source = ModelSource(order.model, order.settings)
            model = model_source.load()
        manifest = new_manifest(name, model, order.source, order.limit)
        engine: Certifier | ModelSource = model.certifier()
        if model_source is not None and order.workers > 1:
            modules = tuple(sorted({*registered_modules(), *registered_noise_modules()}))
            engine = replace(model_source, fingerprint=manifest["model_hash"], modules=modules)
        del model  # workers load their own
        return _certify_into(order, engine, manifest, note, progress)


def _saved_for_workers(model: SmoothedClassifier, resources: ExitStack) -> ModelSource:
    """A model in memory, written to a temporary folder that worker processes load it from."""
    folder = Path(resources.enter_context(TemporaryDirectory(prefix="adaptdel-"))) / "model"
    try:
        model.save(folder)
    except ValueError as error:
        raise ValueError(f"workers must be 1 for a model that cannot be saved: {error}") from None
    return ModelSource(folder)


def _certify_into(
    order: Order, engine: Certifier | ModelSource, manifest: dict[str, Any], note: Note, progress: Any
) -> Result:
    _check_folder(order.out)
    fresh = not order.out.exists()
    try:
        order.out.mkdir(parents=True, exist_ok=True)
        with locked(order.out):
            return _Session(order, engine, note, progress).go(manifest)
    except OSError as error:
        if error.errno in FULL:
            raise ValueError(f"{order.out}: the disk is full: {_KEPT} once there is space") from error
        raise
    finally:
        if fresh:
            with suppress(OSError):
                order.out.rmdir()  # if nothing has been written


def evaluate(
    model: SmoothedClassifier | str | Path,
    data: str | Path | Sequence[str],
    *,
    out: str | Path,
    labels: Sequence[Any] | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    id_column: str = DATA.ids,
    encoding: str = DATA.encoding,
    limit: int | None = None,
    workers: int = 1,
    strict: bool = False,
    progress: Any = "auto",
) -> Run:
    """Certify a data set into a run folder, as ``adaptdel certify`` does, and return the run.

    Resumable: call it again with the same arguments after a stop or a crash. A finished run is returned as it is.

    Args:
        model: a `SmoothedClassifier` around any base classifier whose classes are known, or the folder of a saved one.
        data: a file (JSON lines, CSV or Parquet, also gzipped), a data set of Hugging Face, or a list of texts.
        out: the folder of the run.
        labels: the labels of a list of texts.
        text_column: of a file; None for that of the training data, if the model has stored it, or else "text".
        label_column: of a file; None for that of the training data, or else "label".
        id_column: of a file; "" identifies inputs by their texts.
        encoding: of a file.
        limit: certify the first so many rows; it can be raised later.
        workers: processes; more than 1 need a model that can be saved.
        strict: raise at a row that cannot be certified, instead of recording its problem.
        progress: True, False, "auto" (a bar if a terminal watches) or a callable (done, total).
    """
    if isinstance(model, (str, Path)):
        model = Path(model)
    elif not isinstance(model, SmoothedClassifier):
        raise ValueError(
            f"model must be a SmoothedClassifier or its folder, got {model!r}: wrap it in one, with a noise"
        )
    if isinstance(data, (str, Path)):
        if labels is not None:
            raise ValueError("labels must be None for a data file, which has a column of labels")
        columns = data_columns(model, text_column, label_column)
        source = Source(str(data), **columns, ids=id_column, encoding=encoding)
    else:
        texts = list(data)
        if labels is not None and len(labels) != len(texts):
            raise ValueError(f"labels must be one for each of the {len(texts)} texts, got {len(labels)}")
        source = MemorySource(texts=texts, labels=labels)
    order = Order(model, source, Path(out), limit=limit, workers=workers, strict=strict)
    certify_data(order, note=_log.warning, progress=progress)
    return read_run(out)


class _Session:
    """One session of a run."""

    def __init__(self, order: Order, engine: Certifier | ModelSource, note: Note, progress: Any) -> None:
        self.order, self.engine, self.note, self.progress = order, engine, note, progress
        self.folder = order.out

    def go(self, manifest: dict[str, Any]) -> Result:
        """Everything, from the manifest to the finished tables."""
        remove_leftovers(self.folder)
        old = read_manifest(self.folder) if (self.folder / MANIFEST).exists() else None
        if old is not None:
            self._check_same(old, manifest)
            if old["finished"] and limit_of(manifest) == limit_of(old):
                totals = self._checked_totals(old)
                drop_store(self.folder)
                self._sign()
                return Result(old | {"totals": totals}, already_done=True)
            manifest = old | {"limit": manifest["limit"], "finished": None}
        label_map = LabelMap(manifest["classes"])
        data_survey = survey(self.order.source, label_map, self.order.limit)
        self._tell(data_survey)
        drop_signature(self.folder)  # of what the run was so far
        if old is not None and old["finished"]:  # the limit was raised
            fill_store(self.folder)
        manifest["sessions"] = [*manifest["sessions"], session(self.order.workers)]
        if self.order.source.is_standard_input:
            manifest["data"] = manifest["data"] | {"path": str(self.folder / standard_input().name)}
        write_json(self.folder / MANIFEST, manifest)
        self._keep_data(manifest)
        with open_store(self.folder) as store:
            self._certify(store, label_map, data_survey)
            self._finish(store, manifest, data_survey)
        self._sign()
        return Result(manifest)

    def _keep_data(self, manifest: dict[str, Any]) -> None:
        """Copy standard input into the folder, which is needed to resume the run and to show its texts."""
        if self.order.source.is_standard_input:
            copy = Path(manifest["data"]["path"])
            with standard_input().open("rb") as data, replacing(copy) as file:
                shutil.copyfileobj(data, file)
            self.note(f"standard input is copied to {copy}: to resume the run, give this file as --data")

    def _check_same(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        wrong = differences(old, new)
        if wrong:
            raise ValueError(f"{self.folder}: holds another run: {'; '.join(wrong)}: choose another folder for --out")

    def _checked_totals(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The totals of the rows; ValueError if the manifest states others."""
        totals = Totals.of(manifest)
        try:
            for record in read_run(self.folder).records():
                totals.add(record)
        except TypeError:  # a null
            totals = Totals.of(manifest)
        stated = manifest.get("totals")
        if json.dumps(stated, sort_keys=True) != json.dumps(totals.expected(stated), sort_keys=True):
            raise ValueError(
                f"{self.folder}: the totals in {MANIFEST} are not those of the rows: adaptdel verify says what is "
                "wrong; make the run again in another folder"
            )
        return totals.to_dict()

    def _tell(self, data_survey: Survey) -> None:
        """Say what the first look found; ``strict`` stops here."""
        path = self.order.source.name
        if data_survey.first is not None:
            where = f"{path}, row {data_survey.first.number}: {data_survey.first.problem}"
            if self.order.strict:
                raise ValueError(where)
            others = f", and {data_survey.invalid - 1} more such rows" if data_survey.invalid > 1 else ""
            self.note(f"{where}{others}: not certified")
        if not data_survey.labelled:
            self.note(f"{path}: no row has a label in the column {self.order.source.label!r}: no accuracy is known")

    def _certify(self, store: WorkingStore, label_map: LabelMap, data_survey: Survey) -> None:
        """Certify the inputs that the store does not hold yet."""
        totals, known = self._so_far(store)
        report = reporter(self.progress, "inputs")

        def keep(record: Record) -> None:
            store.put(record["row"], record)
            totals.add(record)
            if isinstance(report, ProgressBar):
                report.note(describe(totals))
            if report is not None:
                report(totals.inputs, data_survey.rows)

        if isinstance(self.engine, Certifier) and not self.engine.fingerprint and totals.certified:
            self._check_function(self.engine, store, label_map, data_survey, known)
        failures = 0
        left = data_survey.rows - data_survey.invalid - totals.certified
        with closing(self._records(self._jobs(label_map, data_survey, known, keep), left)) as records:
            for record in records:
                failures = self._count_failure(record, failures)
                keep(record)

    def _so_far(self, store: WorkingStore) -> tuple[Totals, Known]:
        """The totals and ids of the certificates in the store. Rows with a problem are tried again."""
        totals = Totals()

        def ids() -> Iterator[str]:
            for record in run_records(store.records()):
                if record["problem"] is None:
                    totals.add(record)
                    yield record["id"]

        known = Known(ids())
        return totals, known

    def _check_function(
        self, certifier: Certifier, store: WorkingStore, label_map: LabelMap, data_survey: Survey, known: Known
    ) -> None:
        """Certify some inputs of an earlier session again: a function has no fingerprint by which to recognise it."""
        rows = inputs(self.order.source, label_map, self.order.limit, data_survey.repeats)
        certified = (row for row in rows if isinstance(row, RunInput) and row.id in known)
        repeated = list(certify_here(certifier, islice(certified, REPEATED)))
        ids = {record["id"] for record in repeated}
        stored = {record["id"]: record for record in run_records(store.records()) if record["id"] in ids}
        for record in repeated:
            if record | {"seconds": None} != stored[record["id"]] | {"seconds": None}:
                raise ValueError(
                    f"{self.folder}: holds another run: the model answers differently on row {record['row']} than in "
                    "the session before: choose another folder for out"
                )

    def _jobs(
        self, label_map: LabelMap, data_survey: Survey, known: Known, keep: Callable[[Record], None]
    ) -> Iterator[RunInput]:
        """The inputs that are left; invalid rows go straight to the store."""
        for row in inputs(self.order.source, label_map, self.order.limit, data_survey.repeats):
            if isinstance(row, InvalidRow):
                keep(problem_record(row.problem, id=row.id, row=row.number))
            elif row.id not in known:
                yield row

    def _records(self, jobs: Iterator[RunInput], left: int) -> Generator[Record, None, None]:
        if isinstance(self.engine, Certifier):
            return certify_here(self.engine, jobs)
        return certify_in_workers(self.engine, jobs, left, min(self.order.workers, max(left, 1)))

    def _count_failure(self, record: Record, failures: int) -> int:
        """How many inputs in a row the model has failed on; ValueError if it is enough."""
        if record["problem"] is None:
            return 0
        if self.order.strict:
            raise ValueError(f"{self.order.source.name}, row {record['row']}: {record['problem']}: {_KEPT}")
        if failures + 1 >= FAILURES:
            raise ValueError(f"the model failed on {FAILURES} inputs one after the other: {record['problem']}: {_KEPT}")
        return failures + 1

    def _finish(self, store: WorkingStore, manifest: dict[str, Any], data_survey: Survey) -> None:
        """Write the tables, then mark the manifest as finished, then delete the store."""
        totals = Totals.of(manifest)

        def counted() -> Iterator[Record]:
            for record in run_records(store.records()):
                totals.add(record)
                yield record

        write_tables(self.folder, counted())
        if totals.inputs != data_survey.rows:
            raise ValueError(f"{self.order.source.name}: the data were changed while the run went on")
        manifest["totals"] = totals.to_dict()
        manifest["finished"] = timestamp()
        write_json(self.folder / MANIFEST, manifest)
        store.delete()

    def _sign(self) -> None:
        if self.order.key is not None:
            sign_run(self.folder, self.order.key)


def _check_folder(folder: Path) -> None:
    """A folder that holds something else is not touched."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: must be a folder for the run, got a file")
    if folder.exists() and not (folder / MANIFEST).exists():
        foreign = [path.name for path in folder.iterdir() if not path.name.startswith(".manifest.json.")]
        if foreign:
            raise ValueError(f"{folder}: holds something that is not a run: {sorted(foreign)[0]}: choose another --out")


def recertify(
    source: Path,
    out: Path,
    *,
    alpha: float | None = None,
    ops: str | None = None,
    bound: str | None = None,
    work: int | None = STEPS,
    key: SigningKey | None = None,
) -> dict[str, Any]:
    """Write a run with new radii beside the one that has the votes; its manifest, which says where it came from.

    ``work`` is how many steps of arithmetic may be spent on a row; ``key`` signs the new run.
    """
    run = read_run(source)
    if "alpha" not in run.manifest:
        raise ValueError(f"{source / MANIFEST}: must state alpha to be recertified")
    if not run.finished:
        raise ValueError(f"{source}: the run is not finished: run its certify again first")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out}: must be a new folder, or an empty one")
    changes = _checked(run, alpha, ops, bound)
    manifest = run.manifest | changes
    manifest["source"] = {
        "path": str(source),
        **{name: run.manifest[name] for name in ("alpha", "ops", "bound")},
        "planned": _planned(run.manifest),
    }
    manifest["started"] = timestamp()
    totals = Totals.of(manifest)

    def records() -> Iterator[Record]:
        for record in _rederived(run, changes, work):
            totals.add(record)
            yield record

    with replacing_folder(out) as partial:
        write_tables(partial, records())
        manifest |= {"finished": timestamp(), "sessions": [{"started": manifest["started"], "versions": versions()}]}
        manifest["totals"] = totals.to_dict()
        write_json(partial / MANIFEST, manifest)
        if key is not None:
            sign_run(partial, key)
    return manifest


def _planned(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """For which alpha and attacker the looks of a run were planned; None if it does not say."""
    if manifest.get("source") is None:
        return {name: manifest[name] for name in ("alpha", "ops")}
    planned: dict[str, Any] | None = manifest["source"].get("planned")
    return planned


def _checked(run: Run, alpha: float | None, ops: str | None, bound: str | None) -> dict[str, Any]:
    """What is to be changed, in the manifest's words."""
    changes: dict[str, Any] = {}
    if alpha is not None:
        changes["alpha"] = check_alpha(alpha)
    if ops is not None:
        noise = noise_from_dict(run.manifest["noise"])
        threat = Threat(noise.certified_ops if ops == "edit" else ops)
        check_noise(noise, threat)
        changes["ops"] = list(threat.ops)
    if bound is not None:
        changes["bound"] = check_choice("bound", bound, BOUNDS)
    return changes


def _rederived(run: Run, changes: dict[str, Any], work: int | None) -> Iterator[Record]:
    seconds = run.times["seconds"].to_pylist() or [None] * len(run.table)
    for record, spent in zip(run.records(), seconds, strict=True):
        if record["problem"] is not None:
            yield record | {"seconds": spent}
            continue
        try:
            certificate = certificate_of(run.manifest, record).rederive(**changes)
            with limited(work):
                derived = record_of(certificate, id=record["id"], row=record["row"], label=label_of(record))
        except TooMuchWork:
            raise ValueError(
                f"{run.place(record)}: to derive the radius for {record['length']} tokens takes more than the {work} "
                "steps that are allowed: allow more with --work"
            ) from None
        except ValueError as error:
            raise ValueError(f"{run.place(record)}: {error}: {RESTORE}") from None
        yield derived | {"seconds": spent}
