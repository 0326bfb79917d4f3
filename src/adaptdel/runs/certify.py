"""Certify a data file into a run, which is resumable; verify a run, and derive new radii from its evidence."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Certifier, Input, InputResult
from adaptdel.certification.verify import NOT_CHECKED, is_same, verify_certificate
from adaptdel.core.checks import STEPS, check_int
from adaptdel.core.plain import to_plain
from adaptdel.files import replacing_folder, write_json
from adaptdel.models.estimator import TextEstimator
from adaptdel.models.model_files import data_columns
from adaptdel.progress import reporter
from adaptdel.runs.columns import (
    RESTORE,
    TOTALLED,
    Record,
    Totals,
    batch_of,
    certificate_of,
    label_of,
    problem_record,
    record_of,
    records_of,
)
from adaptdel.runs.engine import ENGINE, EngineSettings, ModelSource, Task, Work, start_engine, with_settings
from adaptdel.runs.inputs import DataFacts, LabelMap, MemorySource, RunInput, Source, Survey, inputs, survey
from adaptdel.runs.manifest import Manifest, new_manifest, protected_class, session, timestamp
from adaptdel.runs.storage import (
    MANIFEST,
    STORE,
    TABLE,
    Run,
    in_order,
    open_store,
    read_manifest,
    read_run,
    run_folder,
    stored_key,
    stored_value,
    write_table,
)
from adaptdel.store import Store, delete_store
from adaptdel.text.data import DATA, FREE, InvalidRow, label_text
from adaptdel.text.formats import DataPath

FAILURES = 25  # after this many failures in succession the run stops
# Rows that are written together: what a killed process loses at most. The tokens bound the memory of their evidence.
BATCH_ROWS, BATCH_SECONDS, BATCH_TOKENS = 1000, 2.0, 2_000_000
SECONDS = "seconds"  # the column of the working time, in the store alone
_log = logging.getLogger(__name__)

Note = Callable[[str], None]
Results = Iterator[tuple[str, list[str]]]  # the name of a row, or "the run", and what is wrong with it


@dataclass(frozen=True)
class CertificationTask(Task):
    """Certify inputs of a run; results are its records, in the order in which they are finished.

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
        last = time.perf_counter()

        def record(result: InputResult) -> Record:
            nonlocal last
            given, certificate = result.input.tag, result.certificate
            if certificate is None:
                values = problem_record(str(result.failure), id=given.id, row=given.row)
            else:
                values = record_of(certificate, id=given.id, row=given.row, label=given.label)
            last, values[SECONDS] = (now := time.perf_counter()), now - last
            return values

        return lambda items: map(record, certifier(Input(each.text, f"row {each.row}", each) for each in items))

    def failed(self, item: Any, reason: str) -> Record:
        """A record that states the problem."""
        return problem_record(reason, id=item.id, row=item.row)


def evaluate(
    model: TextEstimator | str | Path,
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

    To resume after an interruption, call it again with the same arguments. A finished run is returned as it is.

    Args:
        model: a model, or the folder of a saved one.
        data: a file (JSON Lines, CSV or Parquet, also gzipped), a glob, a folder, an address such as s3://, a Hugging
            Face data set, or a list of texts.
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
    elif not isinstance(model, TextEstimator):
        raise ValueError(f"model must be one of adaptdel's models or its folder, got {model!r}: wrap it in one")
    if isinstance(engine, str):
        engine = EngineSettings(engine, workers)
    elif workers is not None:
        raise ValueError("workers must be None if engine is EngineSettings, which have a field for them")
    if isinstance(data, (str, Path)):
        if labels is not None:
            raise ValueError("labels must be None for a data file, which has a column of labels")
        columns = data_columns(model, text_column, label_column)
        source = Source((str(data),), **columns, encoding=encoding)
    else:
        texts: list[Any] = list(data)
        if labels is not None and len(labels) != len(texts):
            raise ValueError(f"labels must be one for each of the {len(texts)} texts, got {len(labels)}")
        source = MemorySource(texts=texts, labels=labels)
    options: dict[str, Any] = {"limit": limit, "engine": engine, "running": running}
    return certify_data(model, source, Path(out), **options, note=_log.warning, progress=progress)


def certify_data(
    model: Path | TextEstimator,
    source: Source,
    out: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    limit: int | None = None,
    engine: EngineSettings = ENGINE,
    running: Mapping[str, Any] | None = None,
    note: Note = lambda text: None,
    progress: Any = "auto",
) -> Run:
    """Certify, or resume an unfinished run; a finished run is left as it is. Behind `evaluate` and the command.

    Args:
        model: the folder of a model, or the model.
        source: the data.
        out: the folder of the run.
        settings: replace those of the model that are among its `run_options`.
        limit: as of `evaluate`.
        engine: where to certify: in this process, in local workers or on a Ray cluster.
        running: as of `evaluate`.
        note: called with what a user should know.
        progress: as of `evaluate`.

    ValueError if the folder holds another run, if the data cannot be read or if the disk is full.
    """
    if limit is not None:
        check_int("limit", limit, least=1)
    with ExitStack() as resources:
        task, manifest, used = _prepared(model, source, settings or {}, limit, engine, running, note, resources)
        resources.enter_context(run_folder(out, (MANIFEST, TABLE), task.try_again))
        old = _old(out, manifest)
        if old is not None and old.finished and old.manifest.limit == limit:
            _check_data(source, old, progress)
            delete_store(out / STORE)  # of a process that was killed after it had written everything
            totals = Totals.of(old.manifest, old.records(TOTALLED)).to_dict()  # whatever the manifest states
            note(f"{out}: the run is finished already, since {old.manifest.finished}")
            return Run(out, replace(old.manifest, totals=totals))
        label_map = LabelMap(manifest.classes)
        counts = survey(source, label_map, limit, _known(old), used)
        data = _check_data(source, old, progress)
        for sentence in counts.notes(source):
            note(sentence)
        # the engine comes first: if it cannot start, nothing is written
        started = resources.enter_context(start_engine(engine if counts.left else ENGINE))
        if started.description is not None:
            note(started.description)
        if old is not None:
            if old.finished:  # the limit was raised
                _fill_store(old)
            manifest = old.manifest.unfinished(limit=limit)
        # the rate of a session must not count the time of the rows that were done before
        now = session(engine, counts.rows, counts.done)
        manifest = replace(manifest, data=data, sessions=[*manifest.sessions, now])
        write_json(out / MANIFEST, to_plain(manifest))
        store = resources.enter_context(open_store(out))
        rows = resources.enter_context(closing(_Batches(store, manifest.kind)))
        left = _left(source, label_map, limit, rows, _certified(store, counts.last))
        report, done, failures = reporter(progress, "inputs"), counts.done, 0
        for record in started.map(task, left, counts.left):
            failures = 0 if record["problem"] is None else failures + 1
            if failures == FAILURES:
                raise ValueError(
                    f"the model failed on {FAILURES} inputs in succession: {record['problem']}: {task.try_again}"
                )
            rows.put(record)
            done += 1
            if report is not None:
                report(done, counts.rows)
        rows.flush()
        return Run(out, _finish(out, store, manifest, counts, source.name, note))


def _prepared(
    model: Path | TextEstimator,
    source: Source,
    settings: Mapping[str, Any],
    limit: int | None,
    engine: EngineSettings,
    running: Mapping[str, Any] | None,
    note: Note,
    resources: ExitStack,
) -> tuple[CertificationTask, Manifest, frozenset[int]]:
    """The task, the manifest of a new run, and the hashes of the texts that the model depends on.

    A model in memory is written to a temporary folder, if worker processes have to load it.
    """
    if isinstance(model, Path):
        name, model_source = str(model), ModelSource(model, dict(settings), running=dict(running or {}))
        loaded: TextEstimator = model_source.load()
    else:
        name, loaded = "a model in memory", with_settings(model, settings, running)
        folder = Path(resources.enter_context(TemporaryDirectory(prefix="adaptdel-"))) / "model"
        model_source = ModelSource(folder)
        if engine.is_distributed:
            try:
                loaded.save(folder)
            except ValueError as error:
                raise ValueError(f"workers must be 1 for a model that cannot be saved: {error}") from None
    if (sentence := loaded.changed_plan()) is not None:
        note(sentence)
    manifest = new_manifest(name, loaded, source, limit)
    certifier = loaded.certifier()
    if engine.is_distributed:  # each worker loads its own
        task = CertificationTask(replace(model_source, fingerprint=manifest.model_hash))
    else:
        task = CertificationTask(None, certifier)
    known = loaded.records.texts
    return task, manifest, frozenset(int(text) for use in known if use not in FREE for text in known[use])


def _old(out: Path, manifest: Manifest) -> Run | None:
    """The run in a folder, checked; ValueError if it is not that of the manifest."""
    if not (out / MANIFEST).exists():
        return None
    old = Run(out, read_manifest(out))
    old.manifest.check_resumable(out, manifest)
    if old.finished:
        old.check()
    return old


def _check_data(source: Source, old: Run | None, progress: Any) -> DataFacts:
    """What is known of the data, their hash included; ValueError unless they are those of earlier calls."""
    data = source.facts(progress=progress)
    if old is not None and data.identity() != old.manifest.data.identity():
        survey(source, LabelMap(old.manifest.classes), old.manifest.limit, _known(old))  # names the row
        raise ValueError(
            f"{source.name}: not the data of the run in {old.folder}, though the rows that were certified are the "
            "same: choose another folder for --out"
        )
    return data


def _certified(store: Store, last: int) -> npt.NDArray[np.bool_]:
    """Which rows have a certificate in the store, shape (last + 1,); those with a problem are tried again."""
    known = np.zeros(last + 1, dtype=np.bool_)
    for batch in in_order(store.path, store.records(), ("row", "problem")):
        known[batch["row"].to_numpy()[batch["problem"].is_null().to_numpy(zero_copy_only=False)]] = True
    return known


def _left(
    source: Source, label_map: LabelMap, limit: int | None, rows: _Batches, known: npt.NDArray[np.bool_]
) -> Iterator[RunInput]:
    """The inputs that have no certificate yet; invalid rows are stored immediately."""
    for row in inputs(source, label_map, limit):
        if isinstance(row, InvalidRow):
            rows.put(problem_record(row.problem, id=row.id, row=row.number))
        elif row.row >= len(known):
            raise ValueError(f"{source.name}: the data were changed during the run")
        elif not known[row.row]:
            yield row


def _finish(out: Path, store: Store, manifest: Manifest, counts: Survey, name: str, note: Note) -> Manifest:
    """Write the table, then mark the manifest as finished, then delete the store."""
    totals, of_new, seconds = Totals.of(manifest), Totals.of(manifest), manifest.seconds or 0.0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal seconds
        for batch in in_order(store.path, store.records()):
            for record in records_of(batch.select(TOTALLED)):
                totals.add(record)
                if counts.used and record["row"] not in counts.used:
                    of_new.add(record)
            seconds += float(np.nansum(batch[SECONDS].to_numpy(zero_copy_only=False)))
            yield batch

    table_hash = write_table(out, manifest.kind, batches())
    if totals.inputs != counts.rows:
        raise ValueError(f"{name}: the data were changed during the run")
    manifest = replace(
        manifest,
        table_sha256=table_hash,
        seconds=seconds,
        totals=totals.to_dict(),
        rows=totals.inputs,
        finished=timestamp(),
    )
    write_json(out / MANIFEST, to_plain(manifest))
    store.delete()
    if of_new.labelled:
        fresh = of_new.outcomes()
        note(
            f"without them, {len(fresh):,} labelled texts: clean accuracy {100 * fresh.clean_accuracy:.1f}%, "
            f"mean certified radius {fresh.mean_radius:.2f}"
        )
    return manifest


class _Batches:
    """Rows that are written to a store in batches: a batch is complete after a number of rows, or after some time."""

    def __init__(self, store: Store, kind: str) -> None:
        self._store, self._kind = store, kind
        self._rows: list[Record] = []
        self._tokens = 0
        self._written = time.monotonic()
        written = store.keys()
        self._sequence = 1 + max((int(key.partition("-")[2]) for key in written), default=0)

    def put(self, record: Record) -> None:
        """Add a row."""
        self._rows.append(record)
        self._tokens += record.get("length", 0)
        if (
            len(self._rows) >= BATCH_ROWS
            or self._tokens >= BATCH_TOKENS
            or time.monotonic() - self._written >= BATCH_SECONDS
        ):
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait; they are on the disk when this returns."""
        if self._rows:
            rows = sorted(self._rows, key=lambda record: record["row"])
            batch = batch_of(self._kind, rows)
            seconds = pa.array([record.get(SECONDS) for record in rows], pa.float64())
            self._store.put(
                stored_key(rows[0]["row"], self._sequence), stored_value(batch.append_column(SECONDS, seconds))
            )
            self._store.flush()
        self._rows, self._tokens, self._written, self._sequence = [], 0, time.monotonic(), self._sequence + 1

    close = flush


def _known(run: Run | None) -> Iterable[Record]:
    return () if run is None else run.records(("row", "id", "truth", "problem"))


def _fill_store(run: Run) -> None:
    """Put the rows of a finished run into a new store, so that more can be certified."""
    delete_store(run.folder / STORE)
    with open_store(run.folder) as store:
        for number, batch in enumerate(run.batches(), start=1):
            seconds = pa.nulls(len(batch), pa.float64())
            store.put(stored_key(batch["row"][0].as_py(), number), stored_value(batch.append_column(SECONDS, seconds)))


def verify_run(
    run: Run, *, work: int | None = STEPS, note: Note = lambda text: None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the errors of every row that has a certificate, with the name of the row; then those of the whole run.

    ``work`` is that of `adaptdel.certification.verify.verify`; ``note`` is called with remarks that are no errors.
    """
    if not run.finished:
        note("the run is not finished: only the finished inputs are checked")
    manifest, totals, rows = run.manifest, Totals.of(run.manifest), _Rows(run.manifest)
    previous, drawn, failed = 0, list[int](), False
    whole: list[str] = []
    sample = manifest.data.sample
    for record in run.records():
        row = record["row"]
        if row <= previous or (run.finished and sample is None and row != previous + 1):
            whole = whole or [f"row {row} follows row {previous}: rows are missing, repeated or out of order"]
        if record["id"] is not None and not record["id"].startswith(f"{row}-"):
            whole = whole or [f"row {row} has the id of another row, {record['id']!r:.60}"]
        previous = row
        if sample is not None:
            drawn.append(row)
        wrong = rows.errors(record, work)
        if wrong or record["problem"] is None:
            yield f"row {row}", wrong
        if wrong:
            failed, totals.inputs = True, totals.inputs + 1
        else:
            totals.add(record)
    if manifest.limit is not None and previous > manifest.limit:
        whole.append(f"row {previous} is beyond the limit {manifest.limit}")
    if run.finished:
        whole += _totals(manifest, totals, compare=not failed)
        if sample is not None and drawn != [place + 1 for place in sample.positions(range(previous))]:
            whole.append("its rows are not those that the seed of its sample draws")
    if whole:
        yield "the run", whole


def _totals(manifest: Manifest, totals: Totals, *, compare: bool) -> list[str]:
    """Check that a finished run states the number of its rows and, to compare if all rows hold, every total."""
    if manifest.rows != totals.inputs:
        return [f"the manifest counts {manifest.rows} rows, there are {totals.inputs}"]
    if not compare:
        return []
    stated, derived = manifest.totals or {}, json.loads(json.dumps(totals.to_dict()))
    names = [name for name in {**derived, **stated} if stated.get(name, ...) != derived.get(name, ...)]
    return [
        f"the totals state {name:.60} = {stated.get(name, 'nothing')!r:.60}, the rows give "
        f"{derived.get(name, 'nothing')!r:.60}"
        for name in names
    ]


class _Rows:
    """The checks of the rows of a run, which share what `Evidence.alike` names."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._labels = {label_text(label) for label in manifest.classes}
        self._known: dict[Any, Any] = {}

    def errors(self, record: Record, work: int | None = STEPS) -> list[str]:
        """What is wrong with a row: its certificate, or a column that does not follow from it."""
        if record["problem"] is not None:
            others = [name for name in record if name not in ("id", "row", "problem")]
            return [f"a row with a problem must have no {name}" for name in others if record[name] is not None]
        try:
            certificate = certificate_of(self.manifest, record)
        except (ValueError, RecursionError) as error:
            return [f"not a certificate: {error}"]
        try:
            wrong = verify_certificate(certificate, work=work)
        except ValueError as error:
            return [str(error)]
        if wrong and wrong[0].startswith(NOT_CHECKED):
            return wrong
        wrong += differences(certificate, record)
        if record["truth"] is not None and record["truth"] not in self._labels:
            wrong.append(f"the label {record['truth']!r:.60} in the column truth is not one of the classes")
        for key, value in certificate.evidence.alike(certificate).items():
            if self._known.setdefault(key, value) != value:
                name = key[0] if isinstance(key, tuple) else key
                wrong.append(f"another row has other {name}, so they are not of the same model")
        return wrong


def differences(certificate: Certificate, record: Record) -> list[str]:
    """The columns of a row that are not those of its certificate."""
    expected = record_of(certificate, id=record["id"], row=record["row"], label=label_of(record))
    wrong = [
        f"{name} is {record[name]!r:.60}, not {value!r:.60}"
        for name, value in expected.items()
        if not _is_same(record[name], value)
    ]
    return wrong + ([] if record["input_hash"] else ["input_hash must not be empty"])


def _is_same(stored: Any, derived: Any) -> bool:
    if isinstance(stored, np.ndarray) or isinstance(derived, np.ndarray):
        return stored is derived or np.array_equal(stored, derived)
    if isinstance(stored, list):
        return stored == to_plain(derived)
    return is_same(stored, derived)


def verify_with_model(
    run: Run, model: TextEstimator, source: Source, *, note: Note = lambda text: None
) -> Iterator[tuple[str, list[str]]]:
    """Yield the differences of every row from the certificate of the model for the text in the data.

    The plan is that of the run; ``note`` is called with what the model has in its place.
    """
    manifest = run.manifest
    if manifest.plan.sampled_at_random:
        raise ValueError(
            f"{run.folder}: its certificates come from votes: certify again instead, and compare the tables"
        )
    if model.base_classifier().fingerprint() != manifest.model_hash:
        raise ValueError(f"{run.folder}: belongs to another model")
    own, stated = model.plan.to_dict(), manifest.plan.to_dict()
    for name in [name for name in stated if own.get(name) != stated[name]]:
        note(f"the certificates are for {name} = {stated[name]!r}, the model has {own.get(name)!r}")
    derived = protected_class(model) if own == stated else None
    if manifest.model.protects not in (None, derived):
        yield (
            "the run",
            [f"it states that it protects {manifest.model.protects!r:.60}, the model with this plan: {derived!r}"],
        )
    rows = inputs(source, LabelMap(manifest.classes), manifest.limit)
    data = (Input(row.text, f"row {row.row}", row) for row in rows if isinstance(row, RunInput))
    records = (record for record in run.records() if record["problem"] is None)
    for record, result in zip_longest(records, model.certifier(manifest.plan)(data)):
        if record is None or result is None or record["row"] != result.input.tag.row or result.certificate is None:
            yield "the run", ["its rows are not those of the data"]
            return
        given = result.input.tag
        expected = record_of(result.certificate, id=given.id, row=given.row, label=given.label)
        wrong = [f"{name} is not that of the model" for name in expected if not _is_same(record[name], expected[name])]
        is_other = record["input_hash"] != expected["input_hash"]
        yield f"row {given.row}", ["its text is not that of the data"] if is_other else wrong


def recertify(source: Path, out: Path, *, work: int | None = STEPS, **settings: Any) -> Manifest:
    """Write a new run with radii derived from the evidence of a run, and return its manifest, which names the source.

    The files and rows of the source are checked first: a row whose radius does not follow from its evidence is refused.

    Args:
        source: the folder of a finished run.
        out: the folder of the new run.
        work: limits the number of arithmetic steps per row.
        settings: those of `Plan.changed`: ``ops``, and of votes ``alpha`` and ``bound``; None for those of the run.
    """
    run = read_run(source)
    if not run.finished:
        raise ValueError(f"{source}: the run is not finished: run its certify again first")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out}: must be a new folder, or an empty one")
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        plan = run.manifest.plan.changed(**given)
    except ValueError as error:
        raise ValueError(f"{run.folder}: {error}") from None
    manifest = replace(run.manifest, plan=plan, source=str(source), started=timestamp())
    totals, rows = Totals.of(manifest), _Rows(run.manifest)

    def rederived(record: Record) -> Record:
        if record["problem"] is not None:
            return problem_record(record["problem"], id=record["id"], row=record["row"])
        place = f"{run.file}, row {record['row']}"
        if wrong := rows.errors(record, work):
            raise ValueError(f"{place}: does not hold ({'; '.join(wrong)}): {RESTORE}")
        changed = certificate_of(run.manifest, record).rederive(**given)
        return record_of(changed, id=record["id"], row=record["row"], label=label_of(record))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in run.batches():
            records = [rederived(record) for record in records_of(batch)]
            for record in records:
                totals.add(record)
            yield batch_of(plan.kind, records)

    with replacing_folder(out) as partial:
        table_hash = write_table(partial, plan.kind, batches())
        if totals.inputs != run.manifest.rows:
            raise ValueError(
                f"{run.file}: has {totals.inputs} rows, the manifest counts {run.manifest.rows}: {RESTORE}"
            )
        manifest = replace(
            manifest,
            table_sha256=table_hash,
            totals=totals.to_dict(),
            sessions=[session(ENGINE, totals.inputs)],
            finished=timestamp(),
        )
        write_json(partial / MANIFEST, to_plain(manifest))
    return manifest
