"""``adaptdel status``: how far a run is, also while another process certifies or attacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from adaptdel.attacks.attack_run import is_attack_run, read_attack_run
from adaptdel.runs.storage import FINISHED, RUNNING, STOPPED, read_status
from adaptdel.store import is_locked
from adaptdel.tables import number, percent, text_table


@click.command("status")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def status_command(run: Path, as_json: bool) -> None:
    """Show how far the run in the folder RUN is.

    It is only read, also while another process certifies. The exit status is 0 whether the run is finished or not.
    """
    if is_attack_run(run):
        attacked = attack_status(run)
        shown = text_table(("run", str(run)), [(name, _shown(value)) for name, value in attacked.items()])
        click.echo(json.dumps({"run": str(run), **attacked}, indent=2) if as_json else shown.to_terminal())
        return
    status = read_status(run)
    click.echo(json.dumps({"run": str(run), **status}, indent=2) if as_json else describe(status, run))


def attack_status(folder: Path) -> dict[str, Any]:
    """How far a run of attacks is, in plain values."""
    attacked = read_attack_run(folder)
    measures = attacked.measures
    sessions = attacked.manifest.get("sessions") or [{}]
    return {
        "state": FINISHED if attacked.finished else RUNNING if is_locked(folder) else STOPPED,
        "recipe": attacked.manifest["recipe"],
        "inputs": sessions[-1].get("rows"),
        "attacked": len(attacked.records),
        "failures": measures["errors"],
        "accuracy before": measures["accuracy_before"],
        "accuracy after": measures["accuracy_after"],
        "robust accuracy": measures["robust_accuracy"],
    }


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return percent(value) if isinstance(value, float) else str(value)


def describe(status: dict[str, Any], run: Path) -> str:
    """The status for a terminal."""
    done, of_all = status["done"], status["rows"]
    of = "" if of_all is None else f" of {of_all:,} ({percent(done / of_all)})"
    rows = [("state", status["state"]), ("rows", f"{done:,}{of}")]
    if status["rate"] is not None:
        rows.append(("rows per second", number(status["rate"], 1)))
    if status["seconds_left"] is not None:
        rows.append(("time left", clock(status["seconds_left"])))
    rows.append(("failures", f"{status['failures']:,}"))
    if status["clean_accuracy"] is not None:
        rows.append(("clean accuracy", percent(status["clean_accuracy"])))
    if status["mean_radius"] is not None:
        rows.append(("mean certified radius", number(status["mean_radius"])))
    rows.append(("last result", status["changed"] or "none"))
    return "\n".join([text_table(("run", str(run)), rows).to_terminal()])


def clock(seconds: float) -> str:
    """A time in hours and minutes, or in seconds.

    >>> clock(42), clock(3 * 3600 + 125)
    ('42 s', '3 h 02 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
