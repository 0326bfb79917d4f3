"""``adaptdel status``: the progress of a run, also while another process certifies or attacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from adaptdel.runs.storage import FINISHED, RUNNING, STOPPED, is_run, read_status
from adaptdel.store import is_locked
from adaptdel.tables import number, percent, text_table


@click.command("status")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def status_command(run: Path, as_json: bool) -> None:
    """Show the progress of the run in the folder RUN.

    The run is only read, so another process may be certifying. The exit status is 0 whether the run is finished or not.
    """
    values = read_status(run) if is_run(run) else attack_status(run)
    if as_json:
        click.echo(json.dumps({"run": str(run), **values}, indent=2))
        return
    if values.get("rows"):
        values["rows"] = f"{values['done']:,} of {values['rows']:,} ({percent(values.pop('done') / values['rows'])})"
    rows = [(name.replace("_", " "), _shown(name, value)) for name, value in values.items()]
    click.echo(text_table(("run", str(run)), rows).to_terminal())


def attack_status(folder: Path) -> dict[str, Any]:
    """How far a run of attacks is, in plain values."""
    from adaptdel.attacks.attack_run import read_attack_run

    attacked = read_attack_run(folder)
    measures, sessions = attacked.measures, attacked.manifest.sessions
    return {
        "state": FINISHED if attacked.finished else RUNNING if is_locked(folder) else STOPPED,
        "recipe": attacked.manifest.recipe,
        "inputs": sessions[-1].rows if sessions else None,
        "attacked": len(attacked.records),
        "failures": measures["errors"],
        "accuracy before": measures["accuracy_before"],
        "accuracy after": measures["accuracy_after"],
        "robust accuracy": measures["robust_accuracy"],
    }


def _shown(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return "none" if value is None else str(value)
    if name == "seconds_left":
        return clock(value)
    return percent(value) if "accuracy" in name else number(value) + (" rows a second" if name == "rate" else "")


def clock(seconds: float) -> str:
    """A time in hours and minutes, or in seconds.

    >>> clock(42), clock(3 * 3600 + 125)
    ('42 s', '3 h 02 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min"
