"""Certify a data file into a run, which is resumable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from adaptdel.certification.certifier import Certifier, Input
from adaptdel.core.checks import check_int
from adaptdel.files import write_json
from adaptdel.models.model_files import data_columns
from adaptdel.progress import reporter
from adaptdel.runs.engine import ENGINE, Engine, EngineSettings, ModelSource, Task, Work, start_engine, with_settings
from adaptdel.runs.inputs import LabelMap, MemorySource, RunInput, Source, Survey, inputs, survey
from adaptdel.runs.manifest import RunModel, check_resumable, new_manifest, session, timestamp
from adaptdel.runs.records import TOTALLED, Record, Totals, problem_record, record_of
from adaptdel.runs.storage import (
    MANIFEST,
    STORE,
    TABLE,
    Run,
    open_store,
    read_manifest,
    read_run,
    run_folder,
    write_table,
)
from adaptdel.store import Store, delete_store
from adaptdel.text.data import DATA, FREE, InvalidRow
from adaptdel.text.formats import DataPath

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
        return partial(certify_here, certifier)

    def failed(self, item: Any, reason: str) -> Record:
        """A record that states the problem."""
        return problem_record(reason, id=item.id, row=item.row)


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
        manifest = new_manifest(name, model, job.source, job.limit, progress)
        if (sentence := model.changed_plan()) is not None:
            note(sentence)
        task = CertificationTask(None, model.certifier())
        if model_source is not None and job.engine.is_distributed:
            source = replace(model_source, fingerprint=manifest["model_hash"])
            task = CertificationTask(source)
        known = getattr(model, "texts_", None) or {}
        used = frozenset(int(text) for use, hashes in known.items() if use not in FREE for text in hashes)
        del model  # each worker loads its own
        with run_folder(job.out, (MANIFEST, TABLE), task.try_again):
            return _Session(job, task, note, progress, used).run(manifest)


def _saved_for_workers(model: RunModel, resources: ExitStack) -> ModelSource:
    """A model in memory, written to a temporary folder that worker processes load it from."""
    folder = Path(resources.enter_context(TemporaryDirectory(prefix="adaptdel-"))) / "model"
    try:
        model.save(folder)
    except ValueError as error:
        raise ValueError(f"workers must be 1 for a model that cannot be saved: {error}") from None
    return ModelSource(folder)


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
    used: frozenset[int]

    def run(self, manifest: dict[str, Any]) -> FinishedRun:
        """Certify what is left, and write the table."""
        out = self.job.out
        old = Run(out, read_manifest(out)) if (out / MANIFEST).exists() else None
        if old is not None:
            check_resumable(out, old.manifest, manifest)
            self._check_data(old, manifest)
            if old.finished:
                old.check()
            if old.finished and old.manifest["limit"] == manifest["limit"]:
                delete_store(out / STORE)  # of a process that was killed after it had written everything
                totals = Totals.of(old.manifest, old.records(TOTALLED)).to_dict()  # whatever the manifest states
                return FinishedRun(old.manifest | {"totals": totals}, already_done=True)
        label_map = LabelMap(manifest["classes"])
        data_survey = survey(self.job.source, label_map, self.job.limit, _known(old), self.used)
        for sentence in data_survey.notes(self.job.source):
            self.note(sentence)
        # the engine comes first: if it cannot start, nothing is written
        with start_engine(self.job.engine) if data_survey.left else nullcontext() as engine:
            if engine is not None and engine.description is not None:
                self.note(engine.description)
            if old is not None:
                if old.finished:  # the limit was raised
                    _fill_store(old)
                manifest = old.manifest | {"limit": manifest["limit"], "data": manifest["data"]}
                manifest |= {"finished": None, "totals": None, "rows": None, "table_sha256": None}
            # the rate of a session must not count the time of the rows that were done before
            now = session(self.job.engine, data_survey.rows, data_survey.done)
            manifest["sessions"] = [*manifest["sessions"], now]
            write_json(out / MANIFEST, manifest)
            with open_store(out) as store:
                self._certify(store, label_map, data_survey, engine)
                self._finish(store, manifest, data_survey)
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

    def _certify(self, store: Store, label_map: LabelMap, data_survey: Survey, engine: Engine | None) -> None:
        """Certify the inputs that have no certificate yet."""
        known, failed = np.zeros(data_survey.last + 1, dtype=np.bool_), list[int]()
        for row, record in store.records():
            known[row] = record["problem"] is None
            if not known[row]:
                failed.append(row)
        store.remove(failed)  # they are tried again
        report, done, failures = reporter(self.progress, "inputs"), data_survey.done, 0

        def put(record: Record) -> None:
            nonlocal done
            store.put(record["row"], record)
            done += 1
            if report is not None:
                report(done, data_survey.rows)

        def left() -> Iterator[RunInput]:
            """The inputs that are left; invalid rows are stored immediately."""
            for row in inputs(self.job.source, label_map, self.job.limit):
                if isinstance(row, InvalidRow):
                    put(problem_record(row.problem, id=row.id, row=row.number))
                elif not known[row.row]:
                    yield row

        if engine is None:
            for _ in left():
                pass  # invalid rows alone
            return
        with closing(engine.map(self.task, left(), data_survey.left)) as records:
            for record in records:
                failures = 0 if record["problem"] is None else failures + 1
                if failures == FAILURES:
                    raise ValueError(
                        f"the model failed on {FAILURES} inputs in succession: {record['problem']}: "
                        f"{self.task.try_again}"
                    )
                put(record)

    def _finish(self, store: Store, manifest: dict[str, Any], data_survey: Survey) -> None:
        """Write the table, then mark the manifest as finished, then delete the store."""
        totals, of_new = Totals.of(manifest), Totals.of(manifest)
        manifest["seconds"] = manifest["seconds"] or 0.0

        def records() -> Iterator[Record]:
            for _, record in store.records():
                totals.add(record)
                if data_survey.used and record["row"] not in data_survey.used:
                    of_new.add(record)
                manifest["seconds"] += record.get("seconds", 0.0)
                yield record

        manifest["table_sha256"] = write_table(self.job.out, records())
        if totals.inputs != data_survey.rows:
            raise ValueError(f"{self.job.source.name}: the data were changed during the run")
        manifest |= {"totals": totals.to_dict(), "rows": totals.inputs, "finished": timestamp()}
        write_json(self.job.out / MANIFEST, manifest)
        store.delete()
        if of_new.labelled:
            fresh = of_new.outcomes()
            self.note(
                f"without them, {len(fresh):,} labelled texts: clean accuracy {100 * fresh.clean_accuracy:.1f}%, "
                f"mean certified radius {fresh.mean_radius:.2f}"
            )


def _known(run: Run | None) -> Iterable[Record]:
    return () if run is None else run.records(("row", "id", "truth", "problem"))


def _fill_store(run: Run) -> None:
    """Put the rows of a finished run into a new store, so that more can be certified."""
    delete_store(run.folder / STORE)
    with open_store(run.folder) as store:
        for record in run.records():
            store.put(record["row"], record)
