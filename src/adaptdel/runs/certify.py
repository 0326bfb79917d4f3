"""Certify a data file into a run, which is resumable; derive new radii from the votes of a run (recertify)."""

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
from adaptdel.runs.inputs import IdSet, InvalidRow, LabelMap, MemorySource, RunInput, Source, Survey, inputs, survey
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


FAILURES = 25  # after so many failures in succession the run stops
REPEATED = 4  # inputs that a resumed run certifies again if the model has no fingerprint
_KEPT = "everything certified so far is kept: run the same command again"

Note = Callable[[str], None]


@dataclass(frozen=True)
class CertificationJob:
    """A data set to certify, the model, and the settings.

    Attributes:
        model: the folder of a model, or the model.
        source: the data.
        out: the folder of the run; an unfinished run is resumed.
        settings: replace those of the model: alpha, ops, bound, sampling, n_select, n_estimate, seed, threshold.
        limit: the number of rows to certify, from the first; None for all.
        workers: the number of processes; 1 certifies in this process.
        strict: stop at a row that cannot be certified, instead of recording the problem.
        key: signs the finished run.
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
class FinishedRun:
    """The manifest of a finished run, and whether it was finished before the call."""

    manifest: dict[str, Any]
    already_done: bool = False


def certify_data(job: CertificationJob, *, note: Note = lambda text: None, progress: Any = "auto") -> FinishedRun:
    """Certify, or resume an unfinished run; a finished run is left as it is.

    ``progress`` is True, False, "auto" (on a terminal) or a callable (done, total).
    ValueError if the folder holds another run, if the data cannot be read or if the disk is full.
    """
    with ExitStack() as resources:
        if isinstance(job.model, SmoothedClassifier):
            name = "a model in memory"
            model = with_settings(job.model, job.settings)
            model_source = None if job.workers == 1 else _saved_for_workers(model, resources)
        else:
            name = str(job.model)
            model_source = ModelSource(job.model, job.settings)
            model = model_source.load()
        manifest = new_manifest(name, model, job.source, job.limit)
        engine: Certifier | ModelSource = model.certifier()
        if model_source is not None and job.workers > 1:
            modules = tuple(sorted({*registered_modules(), *registered_noise_modules()}))
            engine = replace(model_source, fingerprint=manifest["model_hash"], modules=modules)
        del model  # each worker loads its own
        return _certify_into(job, engine, manifest, note, progress)


def _saved_for_workers(model: SmoothedClassifier, resources: ExitStack) -> ModelSource:
    """A model in memory, written to a temporary folder that worker processes load it from."""
    folder = Path(resources.enter_context(TemporaryDirectory(prefix="adaptdel-"))) / "model"
    try:
        model.save(folder)
    except ValueError as error:
        raise ValueError(f"workers must be 1 for a model that cannot be saved: {error}") from None
    return ModelSource(folder)


def _certify_into(
    job: CertificationJob, engine: Certifier | ModelSource, manifest: dict[str, Any], note: Note, progress: Any
) -> FinishedRun:
    _check_folder(job.out)
    fresh = not job.out.exists()
    try:
        job.out.mkdir(parents=True, exist_ok=True)
        with locked(job.out):
            return _Session(job, engine, note, progress).run(manifest)
    except OSError as error:
        if error.errno in FULL:
            raise ValueError(f"{job.out}: the disk is full: {_KEPT} once there is space") from error
        raise
    finally:
        if fresh:
            with suppress(OSError):
                job.out.rmdir()  # if nothing has been written


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

    Resumable: call it again with the same arguments after an interruption. A finished run is returned as it is.

    Args:
        model: a `SmoothedClassifier` around any base classifier whose classes are known, or the folder of a saved one.
        data: a file (JSON lines, CSV or Parquet, also gzipped), a data set of Hugging Face, or a list of texts.
        out: the folder of the run.
        labels: the labels of a list of texts.
        text_column: the column of the texts in a file; None for that of the training data, if the model has stored it,
            or else "text".
        label_column: the column of the labels in a file; None for that of the training data, or else "label".
        id_column: the column of the ids in a file; "" identifies inputs by their texts.
        encoding: the character encoding of a file.
        limit: the number of rows to certify, from the first; it can be raised later. None for all.
        workers: the number of processes; more than 1 need a model that can be saved.
        strict: raise at a row that cannot be certified, instead of recording its problem.
        progress: True, False, "auto" (a bar if standard error is a terminal) or a callable (done, total).
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
    job = CertificationJob(model, source, Path(out), limit=limit, workers=workers, strict=strict)
    certify_data(job, note=_log.warning, progress=progress)
    return read_run(out)


class _Session:
    """A call of `certify_data`: it starts or resumes a run."""

    def __init__(self, job: CertificationJob, engine: Certifier | ModelSource, note: Note, progress: Any) -> None:
        self.job, self.engine, self.note, self.progress = job, engine, note, progress
        self.folder = job.out

    def run(self, manifest: dict[str, Any]) -> FinishedRun:
        """Certify what is left, and write the tables."""
        remove_leftovers(self.folder)
        old = read_manifest(self.folder) if (self.folder / MANIFEST).exists() else None
        if old is not None:
            self._check_same(old, manifest)
            if old["finished"] and limit_of(manifest) == limit_of(old):
                totals = self._checked_totals(old)
                drop_store(self.folder)
                self._sign()
                return FinishedRun(old | {"totals": totals}, already_done=True)
            manifest = old | {"limit": manifest["limit"], "finished": None}
        label_map = LabelMap(manifest["classes"])
        data_survey = survey(self.job.source, label_map, self.job.limit)
        self._report_invalid_rows(data_survey)
        drop_signature(self.folder)  # the run is about to change
        if old is not None and old["finished"]:  # the limit was raised
            fill_store(self.folder)
        manifest["sessions"] = [*manifest["sessions"], session(self.job.workers)]
        if self.job.source.is_standard_input:
            manifest["data"] = manifest["data"] | {"path": str(self.folder / standard_input().name)}
        write_json(self.folder / MANIFEST, manifest)
        self._keep_data(manifest)
        with open_store(self.folder) as store:
            self._certify(store, label_map, data_survey)
            self._finish(store, manifest, data_survey)
        self._sign()
        return FinishedRun(manifest)

    def _keep_data(self, manifest: dict[str, Any]) -> None:
        """Copy standard input into the folder, which is needed to resume the run and to show its texts."""
        if self.job.source.is_standard_input:
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

    def _report_invalid_rows(self, data_survey: Survey) -> None:
        """Report invalid rows and missing labels; with ``strict``, an invalid row is an error."""
        path = self.job.source.name
        if data_survey.first is not None:
            where = f"{path}, row {data_survey.first.number}: {data_survey.first.problem}"
            if self.job.strict:
                raise ValueError(where)
            others = f", and {data_survey.invalid - 1} more such rows" if data_survey.invalid > 1 else ""
            self.note(f"{where}{others}: not certified")
        if not data_survey.labelled:
            self.note(f"{path}: no row has a label in the column {self.job.source.label!r}: no accuracy is known")

    def _certify(self, store: WorkingStore, label_map: LabelMap, data_survey: Survey) -> None:
        """Certify the inputs that the store does not hold yet."""
        totals, known = self._already_certified(store)
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

    def _already_certified(self, store: WorkingStore) -> tuple[Totals, IdSet]:
        """The totals and ids of the certificates that a resumed run has stored. Rows with a problem are tried again."""
        totals = Totals()

        def ids() -> Iterator[str]:
            for record in run_records(store.records()):
                if record["problem"] is None:
                    totals.add(record)
                    yield record["id"]

        known = IdSet(ids())
        return totals, known

    def _check_function(
        self, certifier: Certifier, store: WorkingStore, label_map: LabelMap, data_survey: Survey, known: IdSet
    ) -> None:
        """Certify some inputs of an earlier session again, because a function has no fingerprint to compare."""
        rows = inputs(self.job.source, label_map, self.job.limit, data_survey.repeats)
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
        self, label_map: LabelMap, data_survey: Survey, known: IdSet, keep: Callable[[Record], None]
    ) -> Iterator[RunInput]:
        """The inputs that are left; invalid rows are stored immediately."""
        for row in inputs(self.job.source, label_map, self.job.limit, data_survey.repeats):
            if isinstance(row, InvalidRow):
                keep(problem_record(row.problem, id=row.id, row=row.number))
            elif row.id not in known:
                yield row

    def _records(self, jobs: Iterator[RunInput], left: int) -> Generator[Record, None, None]:
        if isinstance(self.engine, Certifier):
            return certify_here(self.engine, jobs)
        return certify_in_workers(self.engine, jobs, left, min(self.job.workers, max(left, 1)))

    def _count_failure(self, record: Record, failures: int) -> int:
        """The number of failures in succession; ValueError if it reaches `FAILURES`."""
        if record["problem"] is None:
            return 0
        if self.job.strict:
            raise ValueError(f"{self.job.source.name}, row {record['row']}: {record['problem']}: {_KEPT}")
        if failures + 1 >= FAILURES:
            raise ValueError(f"the model failed on {FAILURES} inputs in succession: {record['problem']}: {_KEPT}")
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
            raise ValueError(f"{self.job.source.name}: the data were changed during the run")
        manifest["totals"] = totals.to_dict()
        manifest["finished"] = timestamp()
        write_json(self.folder / MANIFEST, manifest)
        store.delete()

    def _sign(self) -> None:
        if self.job.key is not None:
            sign_run(self.folder, self.job.key)


def _check_folder(folder: Path) -> None:
    """Raise if the folder holds something that is not a run."""
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
    """Write a new run with radii derived from the votes of a run, and return its manifest, which names the source.

    ``work`` limits the number of arithmetic steps per row; ``key`` signs the new run.
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
    """The alpha and the operations that the looks of a run were planned for; None if they are not stated."""
    if manifest.get("source") is None:
        return {name: manifest[name] for name in ("alpha", "ops")}
    planned: dict[str, Any] | None = manifest["source"].get("planned")
    return planned


def _checked(run: Run, alpha: float | None, ops: str | None, bound: str | None) -> dict[str, Any]:
    """The changed settings, checked, as fields of a manifest."""
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
                f"{run.place(record)}: deriving the radius for {record['length']} tokens takes more than {work} steps: "
                "raise the limit with --work"
            ) from None
        except ValueError as error:
            raise ValueError(f"{run.place(record)}: {error}: {RESTORE}") from None
        yield derived | {"seconds": spent}
