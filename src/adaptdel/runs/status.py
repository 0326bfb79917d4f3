"""How far a run is: read from its folder, also while another process writes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from adaptdel.runs.parts import TABLE, TIMES_TABLE
from adaptdel.runs.records import Totals
from adaptdel.runs.storage import STORE, Run, read_manifest
from adaptdel.store import is_locked

FINISHED, RUNNING, STOPPED = "finished", "running", "not finished, and no process works on it"


@dataclass(frozen=True)
class RunStatus:
    """How far a run is.

    Attributes:
        state: "finished", "running", or a sentence.
        rows: the rows of the data; None if the run was started by a version that did not store it.
        done: rows with a result.
        failures: rows without a certificate.
        rate: rows a second in the last session; None if nothing was certified in it.
        seconds_left: the time that the other rows take at this rate, while the run goes on.
        clean_accuracy: of the rows so far; None without labels.
        mean_radius: of the rows so far.
        changed: when the last result was written, in ISO 8601.
    """

    state: str
    rows: int | None
    done: int
    failures: int
    rate: float | None
    seconds_left: float | None
    clean_accuracy: float | None
    mean_radius: float | None
    changed: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def read_status(folder: Path) -> RunStatus:
    """Read the status of a run, in bounded memory; nothing is locked or changed."""
    manifest = read_manifest(folder)
    run = Run(folder, manifest)
    last: dict[str, Any] = (manifest.get("sessions") or [{}])[-1]
    rows: int | None = last.get("rows")
    started = datetime.fromisoformat(last["started"]) if "started" in last else None
    totals = Totals()
    for record in run.timed_records():
        totals.add(record)
    changed = _changed(folder, run)
    done = totals.inputs
    recent = done - (last.get("done") or 0)
    rate = None
    end = datetime.fromisoformat(manifest["finished"]) if run.finished else changed
    if started is not None and end is not None and recent > 0:
        rate = recent / max((end - started).total_seconds(), 1.0)
    state = FINISHED if run.finished else RUNNING if is_locked(folder) else STOPPED
    left = None
    if state == RUNNING and rows is not None and rate:
        left = max(rows - done, 0) / rate
    return RunStatus(
        state=state,
        rows=totals.inputs if run.finished else rows,
        done=done,
        failures=totals.problems,
        rate=rate,
        seconds_left=left,
        clean_accuracy=totals.clean_accuracy,
        mean_radius=totals.mean_radius,
        changed=None if changed is None else changed.isoformat(timespec="seconds"),
    )


def _changed(folder: Path, run: Run) -> datetime | None:
    """When a result was written last."""
    paths = [folder / STORE, folder / f"{STORE}-wal", *run.tables.paths(TABLE), *run.tables.paths(TIMES_TABLE)]
    times = [path.stat().st_mtime for path in paths if path.exists()]
    return datetime.fromtimestamp(max(times), UTC) if times else None
