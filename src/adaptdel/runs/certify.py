"""Certify a data file into a run, resumable; new radii from the votes of a run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adaptdel.certification.certifier import Certifier
from adaptdel.core.bounds import BOUNDS
from adaptdel.core.checks import STEPS, TooMuchWork, check_alpha, check_choice, check_int, limited
from adaptdel.core.noise import noise_from_dict
from adaptdel.core.radius import check_noise
from adaptdel.core.threat import Threat
from adaptdel.files import replacing_folder, sync_folder, write_json
from adaptdel.runs.inputs import InvalidRow, Known, LabelMap, RunInput, Source, Survey, inputs, survey
from adaptdel.runs.manifest import differences, limit_of, new_manifest, session, timestamp, versions
from adaptdel.runs.records import Record, Totals, certificate_of, problem_record, record_of, truth_of
from adaptdel.runs.signature import SigningKey, drop_signature, sign_run
from adaptdel.runs.storage import (
    FULL,
    JOURNAL,
    MANIFEST,
    RESTORE,
    Run,
    RunJournal,
    locked,
    ordered_records,
    read_journal,
    read_manifest,
    read_run,
    remove_leftovers,
    write_journal,
    write_tables,
)
from adaptdel.runs.workers import ModelSource, certify_here, certify_in_workers


class Watch:
    """Rewrite one line on a terminal; elsewhere write one every half minute, so that a log stays short."""

    def __init__(self, total: int, before: int, *, patience: float = 2.0) -> None:
        self.total, self.before = total, before
        self.live = sys.stderr.isatty()
        self.wait = 0.2 if self.live else 30.0
        self.start = time.monotonic()
        self.due = self.start + max(patience, self.wait)
        self.shown = False

    def __call__(self, totals: Totals) -> None:
        """Show the sums, if it is time."""
        now = time.monotonic()
        if now >= self.due:
            self.due, self.shown = now + self.wait, True
            text = describe(totals, self.total, self.before, now - self.start)
            sys.stderr.write(f"\r{text}\x1b[K" if self.live else f"{text}\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Leave the line as it is."""
        if self.shown and self.live:
            sys.stderr.write("\n")
            sys.stderr.flush()


def describe(totals: Totals, total: int, before: int, seconds: float) -> str:
    """How far a run is, in words.

    >>> describe(Totals(inputs=150, labelled=150, correct=120, radius=600), 200, 100, 25.0)
    '150 of 200 inputs, 2 a second, 25 s left, accuracy 80.0%, mean radius 4.00'
    """
    rate = max(totals.inputs - before, 0) / max(seconds, 1e-9)
    parts = [f"{totals.inputs} of {total} inputs", f"{rate:.3g} a second"]
    if rate:
        parts.append(f"{duration((total - totals.inputs) / rate)} left")
    if totals.accuracy is not None:
        parts.append(f"accuracy {totals.accuracy:.1%}")
    if totals.mean_radius is not None:
        parts.append(f"mean radius {totals.mean_radius:.2f}")
    if totals.problems:
        parts.append(f"{totals.problems} not certified")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(90), duration(1200), duration(9000)
    ('90 s', '20 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


FAILURES = 25  # inputs that the model fails on one after the other: it is the model, then, and the run stops
_KEPT = "everything certified so far is kept: run the same command again"

Note = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """What is to be certified, by what, and how.

    Attributes:
        model: the folder of a model.
        source: the data.
        out: the folder of the run, new or to be gone on with.
        settings: what replaces the model's own: alpha, ops, bound, sampling, n_select, n_estimate, seed.
        limit: certify the first so many rows.
        workers: processes; 1 means this one.
        strict: stop at a row that cannot be certified, instead of noting it.
        key: sign the run with it once it is finished.
    """

    model: Path
    source: Source
    out: Path
    settings: dict[str, Any]
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
    """A finished run: its manifest, and whether it had been finished before."""

    manifest: dict[str, Any]
    before: bool = False


def certify_data(order: Order, *, note: Note = lambda text: None) -> Result:
    """Certify, or go on with what was begun; a run that is finished already is left as it is.

    ValueError if the folder holds a run of something else, if the data cannot be read or the disk is full.
    """
    task = ModelSource(order.model, order.settings)
    model = task.load()
    manifest = new_manifest(order.model, model, order.source, order.limit)
    task = replace(task, fingerprint=manifest["model_hash"])
    here = model.certifier() if order.workers == 1 else None
    del model  # workers load their own
    _check_folder(order.out)
    fresh = not order.out.exists()
    try:
        order.out.mkdir(parents=True, exist_ok=True)
        with locked(order.out):
            return _Run(order, here or task, note).go(manifest)
    except OSError as error:
        if error.errno in FULL:
            raise ValueError(f"{order.out}: the disk is full: {_KEPT} once there is space") from error
        raise
    finally:
        if fresh:
            with suppress(OSError):
                order.out.rmdir()  # if nothing has been written


class _Run:
    """One sitting of a run."""

    def __init__(self, order: Order, means: Certifier | ModelSource, note: Note) -> None:
        self.order, self.means, self.note = order, means, note
        self.folder, self.journal = order.out, order.out / JOURNAL

    def go(self, manifest: dict[str, Any]) -> Result:
        """Everything, from the manifest to the finished tables."""
        remove_leftovers(self.folder)
        old = read_manifest(self.folder) if (self.folder / MANIFEST).exists() else None
        if old is not None:
            self._check_same(old, manifest)
            if old["finished"] and limit_of(manifest) == limit_of(old):
                self._check_totals(old)
                self._drop_journal()
                self._sign()
                return Result(old, before=True)
            manifest = old | {"limit": manifest["limit"], "finished": None}
        label_map = LabelMap(manifest["classes"])
        found = survey(self.order.source, label_map, self.order.limit)
        self._tell(found)
        drop_signature(self.folder)  # of what the run was so far
        if old is not None and old["finished"]:  # the limit was raised
            write_journal(self.folder)
        manifest["sessions"] = [*manifest["sessions"], session(self.order.workers)]
        write_json(self.folder / MANIFEST, manifest)
        self._certify(label_map, found)
        return Result(self._finish(manifest, found))

    def _check_same(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        wrong = differences(old, new)
        if wrong:
            raise ValueError(f"{self.folder}: holds another run: {'; '.join(wrong)}: choose another folder for --out")

    def _check_totals(self, manifest: dict[str, Any]) -> None:
        """Raise unless the totals that are about to be shown are those of the rows."""
        totals = Totals()
        try:
            for record in read_run(self.folder).records():
                totals.add(record)
        except TypeError:  # a null
            totals = Totals()
        if json.dumps(manifest.get("totals"), sort_keys=True) != json.dumps(totals.to_dict(), sort_keys=True):
            raise ValueError(
                f"{self.folder}: the totals in {MANIFEST} are not those of the rows: adaptdel verify says what is "
                "wrong; make the run again in another folder"
            )

    def _tell(self, found: Survey) -> None:
        """Say what the first look found; ``strict`` stops here."""
        path = self.order.source.path
        if found.first is not None:
            where = f"{path}, row {found.first.number}: {found.first.problem}"
            if self.order.strict:
                raise ValueError(where)
            others = f", and {found.invalid - 1} more such rows" if found.invalid > 1 else ""
            self.note(f"{where}{others}: not certified")
        if not found.labelled:
            self.note(f"{path}: no row has a label in the column {self.order.source.label!r}: no accuracy is known")

    def _certify(self, label_map: LabelMap, found: Survey) -> None:
        """Certify what is not in the journal yet."""
        with RunJournal(self.journal) as journal:
            totals, known = self._so_far()
            watch = Watch(found.rows, totals.inputs)

            def keep(record: Record) -> None:
                journal.append(record)
                totals.add(record)
                watch(totals)

            failures = 0
            left = found.rows - found.invalid - totals.certified
            with closing(self._records(self._jobs(label_map, found, known, keep), left)) as records:
                for record in records:
                    failures = self._count_failure(record, failures)
                    keep(record)
            watch.close()

    def _so_far(self) -> tuple[Totals, Known]:
        """What the journal holds. Rows with a problem are tried again."""
        totals = Totals()

        def ids() -> Iterator[str]:
            for _, record in read_journal(self.journal):
                if record["problem"] is None:
                    totals.add(record)
                    yield record["id"]

        known = Known(ids())
        return totals, known

    def _jobs(
        self, label_map: LabelMap, found: Survey, known: Known, keep: Callable[[Record], None]
    ) -> Iterator[RunInput]:
        """The inputs that are left; rows that are none go straight to the journal."""
        for one in inputs(self.order.source, label_map, self.order.limit, found.repeats):
            if isinstance(one, InvalidRow):
                keep(problem_record(one.problem, id=one.id, row=one.number))
            elif one.id not in known:
                yield one

    def _records(self, jobs: Iterator[RunInput], left: int) -> Generator[Record, None, None]:
        if isinstance(self.means, Certifier):
            return certify_here(self.means, jobs)
        return certify_in_workers(self.means, jobs, left, min(self.order.workers, max(left, 1)))

    def _count_failure(self, record: Record, failures: int) -> int:
        """How many inputs in a row the model has failed on; ValueError if it is enough."""
        if record["problem"] is None:
            return 0
        if self.order.strict:
            raise ValueError(f"{self.order.source.path}, row {record['row']}: {record['problem']}: {_KEPT}")
        if failures + 1 >= FAILURES:
            raise ValueError(f"the model failed on {FAILURES} inputs one after the other: {record['problem']}: {_KEPT}")
        return failures + 1

    def _finish(self, manifest: dict[str, Any], found: Survey) -> dict[str, Any]:
        """Turn the journal into tables, then say so in the manifest, then remove the journal."""
        totals = Totals()

        def counted() -> Iterator[Record]:
            for record in ordered_records(self.journal):
                totals.add(record)
                yield record

        write_tables(self.folder, counted())
        if totals.inputs != found.rows:
            raise ValueError(f"{self.order.source.path}: the data were changed while the run went on")
        manifest["totals"] = totals.to_dict()
        manifest["finished"] = timestamp()
        write_json(self.folder / MANIFEST, manifest)
        self._drop_journal()
        self._sign()
        return manifest

    def _sign(self) -> None:
        if self.order.key is not None:
            sign_run(self.folder, self.order.key)

    def _drop_journal(self) -> None:
        with suppress(FileNotFoundError):
            self.journal.unlink()
            sync_folder(self.folder)


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
    totals = Totals()

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
                derived = record_of(certificate, id=record["id"], row=record["row"], truth=truth_of(record))
        except TooMuchWork:
            raise ValueError(
                f"{run.place(record)}: to derive the radius for {record['length']} tokens takes more than the {work} "
                "steps that are allowed: allow more with --work"
            ) from None
        except ValueError as error:
            raise ValueError(f"{run.place(record)}: {error}: {RESTORE}") from None
        yield derived | {"seconds": spent}
