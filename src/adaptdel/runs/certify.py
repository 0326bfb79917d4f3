"""Certify a data file into a run, which is resumable."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adaptdel.certification.certifier import Certifier, Input
from adaptdel.core.checks import check_int
from adaptdel.files import replacing, write_json
from adaptdel.models.model_files import data_columns
from adaptdel.progress import reporter
from adaptdel.runs.engine import ENGINE, Engine, EngineSettings, ModelSource, Task, Work, start_engine, with_settings
from adaptdel.runs.inputs import LabelMap, MemorySource, RunInput, Source, Survey, inputs, survey
from adaptdel.runs.manifest import RunModel, check_resumable, new_manifest, session, timestamp
from adaptdel.runs.parts import ROWS_PER_PART
from adaptdel.runs.records import TOTALLED, Record, Totals, problem_record, record_of
from adaptdel.runs.storage import (
    MANIFEST,
    STORE,
    ResultStore,
    Run,
    fill_store,
    read_manifest,
    read_run,
    remove_leftovers,
)
from adaptdel.store import FULL, delete_store, locked
from adaptdel.text.data import DATA
from adaptdel.text.formats import DataPath, standard_input

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CertificationTask(Task):
    """Certify inputs of a run; results are its records.

    Attributes:
        certifier: what to certify with in this process; None in workers, which load the model from ``source``.
    """

    certifier: Certifier | None = None

    def load(self) -> Work:
        """A function from inputs to records."""
        certifier = self.certifier
        if certifier is None:
            assert self.source is not None
            certifier = self.source.load().certifier()

        def work(items: Iterable[tuple[int, RunInput]]) -> Iterator[tuple[int, Record]]:
            numbers: dict[int, int] = {}

            def inputs() -> Iterator[RunInput]:
                for key, run_input in items:
                    numbers[run_input.row] = key
                    yield run_input

            for record in certify_here(certifier, inputs()):
                yield numbers.pop(record["row"]), record

        return work

    def failed(self, item: Any, reason: str) -> Record:
        """A record that states the problem."""
        return problem_record(reason, id=item.id, row=item.row) | {"seconds": None}


def certify_here(certifier: Certifier, inputs: Iterable[RunInput]) -> Generator[Record, None, None]:
    """Certify in this process: the records in the order in which they are finished.

    If the model fails on an input, its record states the problem instead of a certificate.
    """
    last = time.perf_counter()
    for result in certifier(Input(run_input.text, f"row {run_input.row}", run_input) for run_input in inputs):
        run_input, certificate = result.input.tag, result.certificate
        if certificate is None:
            record = problem_record(str(result.failure), id=run_input.id, row=run_input.row)
        else:
            record = record_of(certificate, id=run_input.id, row=run_input.row, label=run_input.label)
        now = time.perf_counter()
        yield record | {"seconds": now - last}
        last = now


FAILURES = 25  # after so many failures in succession the run stops
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
        engine: where to certify: in this process, in local workers or on a Ray cluster.
        running: where and how a transformer runs: ``device``, ``dtype``, ``batch_tokens`` and ``compile`` of
            `TransformersClassifier`.
    """

    model: Path | RunModel
    source: Source
    out: Path
    settings: dict[str, Any] = field(default_factory=dict)
    limit: int | None = None
    engine: EngineSettings = ENGINE
    running: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_int("limit", self.limit, least=1)
        if self.source.sample is not None:  # parts hold rows that follow each other
            check_int("sample", self.source.sample.rows, least=1, most=ROWS_PER_PART)


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
        if not isinstance(job.model, Path):
            name = "a model in memory"
            model = with_settings(job.model, job.settings, job.running)
            model_source = _saved_for_workers(model, resources) if job.engine.is_distributed else None
        else:
            name = str(job.model)
            model_source = ModelSource(job.model, job.settings, running=job.running)
            model = model_source.load()
        manifest = new_manifest(name, model, job.source, job.limit)
        if (sentence := model.changed_plan()) is not None:
            note(sentence)
        task = CertificationTask(None, model.certifier())
        if model_source is not None and job.engine.is_distributed:
            source = replace(model_source, fingerprint=manifest["model_hash"])
            task = CertificationTask(source)
        hashes = (getattr(model, "texts_", None) or {}).get("training", ())
        training = frozenset(map(int, hashes))
        del model  # each worker loads its own
        return _certify_into(job, task, manifest, note, progress, training)


def _saved_for_workers(model: RunModel, resources: ExitStack) -> ModelSource:
    """A model in memory, written to a temporary folder that worker processes load it from."""
    folder = Path(resources.enter_context(TemporaryDirectory(prefix="adaptdel-"))) / "model"
    try:
        model.save(folder)
    except ValueError as error:
        raise ValueError(f"workers must be 1 for a model that cannot be saved: {error}") from None
    return ModelSource(folder)


def _certify_into(
    job: CertificationJob,
    task: CertificationTask,
    manifest: dict[str, Any],
    note: Note,
    progress: Any,
    training: frozenset[int],
) -> FinishedRun:
    _check_folder(job.out)
    fresh = not job.out.exists()
    try:
        job.out.mkdir(parents=True, exist_ok=True)
        with locked(job.out):
            return _Session(job, task, note, progress, training).run(manifest)
    except OSError as error:
        if error.errno in FULL:
            raise ValueError(f"{job.out}: the disk is full: {_KEPT} once there is space") from error
        raise
    finally:
        if fresh:
            with suppress(OSError):
                job.out.rmdir()  # if nothing has been written


def evaluate(
    model: RunModel | str | Path,
    data: DataPath,
    *,
    out: str | Path,
    labels: Sequence[Any] | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    encoding: str = DATA.encoding,
    limit: int | None = None,
    engine: str | EngineSettings = ENGINE.engine,
    workers: int | None = None,
    running: Mapping[str, Any] | None = None,
    progress: Any = "auto",
) -> Run:
    """Certify a data set into a run folder, as ``adaptdel certify`` does, and return the run.

    Resumable: call it again with the same arguments after an interruption. A finished run is returned as it is.

    Args:
        model: a `SmoothedClassifier`, an `AdditiveClassifier`, or the folder of a saved one.
        data: a file (JSON lines, CSV or Parquet, also gzipped), a glob, a folder, an address such as s3://, a data set
            of Hugging Face, or a list of texts.
        out: the folder of the run.
        labels: the labels of a list of texts.
        text_column: the column of the texts in a file; None for that of the training data, if the model has stored it,
            or else "text".
        label_column: the column of the labels in a file; None for that of the training data, or else "label".
        encoding: the character encoding of a file.
        limit: the number of rows to certify, from the first; it can be raised later. None for all.
        engine: "local", "ray", or `EngineSettings`; other processes need a model that can be saved.
        workers: the number of processes; None for 1, and on Ray for as many as fit.
        running: where and how a transformer runs: ``device``, ``dtype``, ``batch_tokens`` and ``compile`` of
            `TransformersClassifier`.
        progress: True, False, "auto" (a bar if standard error is a terminal) or a callable (done, total).
    """
    if isinstance(model, (str, Path)):
        model = Path(model)
    elif not isinstance(model, RunModel):
        raise ValueError(
            f"model must be a SmoothedClassifier, an AdditiveClassifier or its folder, got {model!r}: wrap it in one"
        )
    if isinstance(engine, str):
        engine = EngineSettings(engine, workers)
    elif workers is not None:
        raise ValueError("workers must be None if engine is EngineSettings, which have a field for them")
    if isinstance(data, (str, Path)):
        if labels is not None:
            raise ValueError("labels must be None for a data file, which has a column of labels")
        columns = data_columns(model, text_column, label_column)
        source = Source(str(data), **columns, encoding=encoding)
    else:
        texts: list[Any] = list(data)
        if labels is not None and len(labels) != len(texts):
            raise ValueError(f"labels must be one for each of the {len(texts)} texts, got {len(labels)}")
        source = MemorySource(texts=texts, labels=labels)
    job = CertificationJob(model, source, Path(out), limit=limit, engine=engine, running=dict(running or {}))
    certify_data(job, note=_log.warning, progress=progress)
    return read_run(out)


@dataclass
class _Session:
    """A call of `certify_data`: it starts or resumes a run."""

    job: CertificationJob
    task: CertificationTask
    note: Note
    progress: Any
    training: frozenset[int]
    engine: Engine | None = None

    def run(self, manifest: dict[str, Any]) -> FinishedRun:
        """Certify what is left, and write the tables."""
        remove_leftovers(self.job.out)
        old = Run(self.job.out, read_manifest(self.job.out)) if (self.job.out / MANIFEST).exists() else None
        if old is not None:
            check_resumable(self.job.out, old.manifest, manifest)
            if old.finished and old.manifest["limit"] == manifest["limit"]:
                self._check_data(old, manifest)
                old.check()
                delete_store(self.job.out / STORE)  # of a process that was killed after it had written everything
                return FinishedRun(old.manifest, already_done=True)
        label_map = LabelMap(manifest["classes"])
        data_survey = self._survey(old, manifest, label_map)
        with ExitStack() as resources:
            if old is None:  # an engine that cannot start leaves nothing behind
                self.engine = resources.enter_context(start_engine(self.job.engine))
            elif old.finished:  # the limit was raised
                fill_store(self.job.out, old.tables)
            if old is not None:
                manifest = old.manifest | {"limit": manifest["limit"], "data": manifest["data"]}
                manifest |= {"finished": None, "totals": None, "rows": None, "files": {}}
            if data_survey.rows > ROWS_PER_PART:
                manifest.setdefault("part_rows", ROWS_PER_PART)
            manifest["sessions"] = [
                *manifest["sessions"],
                session(self.job.engine, data_survey.rows, data_survey.done),  # a rate must not count the time of those
            ]
            if self.job.source.is_standard_input:
                manifest["data"] = manifest["data"] | {"path": str(self.job.out / standard_input().name)}
            write_json(self.job.out / MANIFEST, manifest)
            self._keep_data(manifest)
            with ResultStore(self.job.out, data_survey.rows, manifest.get("part_rows")) as results:
                self._certify(results, label_map, data_survey)
                self._finish(results, manifest, data_survey)
        return FinishedRun(manifest)

    def _check_data(self, old: Run, manifest: dict[str, Any]) -> None:
        """Raise a ValueError unless the data are those of earlier calls."""
        now, then = manifest["data"], old.manifest["data"]
        if then is not None and any(now[name] != then[name] for name in ("sha256", "remote", "files")):
            survey(self.job.source, LabelMap(manifest["classes"]), manifest["limit"], _known(old))  # names the row
            raise ValueError(
                f"{self.job.source.name}: not the data of the run in {self.job.out}, though the rows that were "
                "certified are the same: choose another folder for --out"
            )

    def _survey(self, old: Run | None, manifest: dict[str, Any], label_map: LabelMap) -> Survey:
        """Read the data once, compare them with the rows that are known, and report what is wrong with them."""
        if old is not None:
            self._check_data(old, manifest)
            if old.finished:
                old.check()
        data_survey = survey(
            self.job.source, label_map, self.job.limit, () if old is None else _known(old), self.training
        )
        self._report_invalid_rows(data_survey)
        if data_survey.learnt:
            self.note(
                f"{self.job.source.name}: the model was trained on {len(data_survey.learnt):,} of the "
                f"{data_survey.rows:,} texts, the first is row {min(data_survey.learnt)}: on these, accuracy and radii "
                "are larger than on new texts"
            )
        return data_survey

    def _keep_data(self, manifest: dict[str, Any]) -> None:
        """Copy standard input into the folder, which is needed to resume the run and to show its texts."""
        if self.job.source.is_standard_input:
            copy = Path(manifest["data"]["path"])
            with standard_input().open("rb") as data, replacing(copy) as file:
                shutil.copyfileobj(data, file)
            self.note(f"standard input is copied to {copy}: to resume the run, give this file as --data")

    def _report_invalid_rows(self, data_survey: Survey) -> None:
        """Report invalid rows and missing labels."""
        path = self.job.source.name
        if data_survey.first is not None:
            where = f"{path}, row {data_survey.first.number}: {data_survey.first.problem}"
            others = f", and {data_survey.invalid - 1} more such rows" if data_survey.invalid > 1 else ""
            self.note(f"{where}{others}: not certified")
        if not data_survey.labelled:
            self.note(f"{path}: no row has a label in the column {self.job.source.label!r}: no accuracy is known")
        elif data_survey.unlabelled:
            missing = data_survey.unlabelled
            count = "1 row has" if missing == 1 else f"{missing} rows have"
            column = self.job.source.label
            self.note(f"{path}: {count} no label in the column {column!r}: certified, but left out of the measures")

    def _certify(self, results: ResultStore, label_map: LabelMap, data_survey: Survey) -> None:
        """Certify the inputs that have no certificate yet."""
        report, done = reporter(self.progress, "inputs"), data_survey.done

        def count() -> None:
            nonlocal done
            done += 1
            if report is not None:
                report(done, data_survey.rows)

        failures = 0
        left = data_survey.rows - data_survey.invalid - data_survey.done
        with closing(self._records(self._jobs(results, label_map, count), left)) as records:
            for record in records:
                failures = self._count_failure(record, failures)
                results.put(record, failed=record["problem"] is not None)
                count()

    def _jobs(self, results: ResultStore, label_map: LabelMap, count: Callable[[], None]) -> Iterator[RunInput]:
        """The inputs that are left; invalid rows are stored immediately."""
        last, known = 0, set[int]()
        for row in inputs(self.job.source, label_map, self.job.limit):
            number = row.row if isinstance(row, RunInput) else row.number
            if number > last:
                last, known = results.block(number)
            if number in known:
                continue
            if isinstance(row, RunInput):
                yield row
            else:
                record = problem_record(row.problem, id=row.id, row=row.number) | {"seconds": None}
                results.put(record)
                count()

    def _records(self, jobs: Iterator[RunInput], left: int) -> Generator[Record, None, None]:
        """Certify the inputs on the engine, which a resumed run starts only if an input is left."""
        first = next(jobs, None)
        if first is None:
            return
        with nullcontext(self.engine) if self.engine is not None else start_engine(self.job.engine) as engine:
            if engine.description is not None:
                self.note(engine.description)
            yield from engine.map(self.task, chain([first], jobs), left)

    def _count_failure(self, record: Record, failures: int) -> int:
        """The number of failures in succession; ValueError if it reaches `FAILURES`."""
        if record["problem"] is None:
            return 0
        if failures + 1 >= FAILURES:
            raise ValueError(f"the model failed on {FAILURES} inputs in succession: {record['problem']}: {_KEPT}")
        return failures + 1

    def _finish(self, results: ResultStore, manifest: dict[str, Any], data_survey: Survey) -> None:
        """Write the tables, then mark the manifest as finished, then delete the store."""
        results.write_tables()
        totals, of_new = Totals.of(manifest), Totals.of(manifest)
        for record in results.tables.rows(columns=TOTALLED):
            totals.add(record)
            if data_survey.learnt and record["row"] not in data_survey.learnt:
                of_new.add(record)
        if totals.inputs != data_survey.rows:
            raise ValueError(f"{self.job.source.name}: the data were changed during the run")
        manifest |= {"totals": totals.to_dict(), "rows": totals.inputs, "files": results.tables.digests()}
        manifest["finished"] = timestamp()
        write_json(self.job.out / MANIFEST, manifest)
        results.delete()
        if of_new.labelled:
            fresh = of_new.outcomes()
            self.note(
                f"without them, {len(fresh):,} labelled texts: clean accuracy {100 * fresh.clean_accuracy:.1f}%, "
                f"mean certified radius {fresh.mean_radius:.2f}"
            )


def _known(run: Run) -> Iterator[Record]:
    return run.records(("row", "id", "truth", "problem")) if run.finished else run.timed_records()


def _check_folder(folder: Path) -> None:
    """Raise if the folder holds something that is not a run."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder}: must be a folder for the run, got a file")
    if folder.exists() and not (folder / MANIFEST).exists():
        foreign = [path.name for path in folder.iterdir() if not path.name.startswith(".manifest.json.")]
        if foreign:
            raise ValueError(f"{folder}: holds something that is not a run: {sorted(foreign)[0]}: choose another --out")
