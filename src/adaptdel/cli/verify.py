"""``adaptdel verify``: certificates re-derived in ball arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from adaptdel.verify import verify


@click.command("verify")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
@click.pass_context
def verify_command(context: click.Context, file: Path, as_json: bool) -> None:
    """Re-derive every certificate in FILE from its votes, and say which do not hold.

    FILE holds one certificate, a list of them, or one a line (JSON); or it is the folder of a run. Exit status 1 if any
    does not hold.
    """
    failed, count, rows = 0, 0, []
    for place, wrong in checked(file):
        count += place != "the run"
        failed += bool(wrong)
        if as_json:
            rows.append({"place": place, "holds": not wrong, "wrong": wrong})
        elif wrong:
            click.echo(f"{place}: does not hold: {'; '.join(wrong)}")
    if as_json:
        click.echo(json.dumps({"certificates": count, "failed": failed, "results": rows}, indent=2))
    else:
        click.echo(f"{max(count - failed, 0)} of {count} certificates hold, proven in ball arithmetic")
    context.exit(1 if failed else 0)


def checked(file: Path) -> Iterator[tuple[str, list[str]]]:
    """What is wrong with every certificate of a file or of a run, with where it stands."""
    if file.is_dir():
        from adaptdel.evaluation.audit import audit
        from adaptdel.evaluation.runs import read_run

        run = read_run(file)
        if not run.finished:
            click.echo(f"{file}: the run is not finished: what it has so far is checked", err=True)
        yield from audit(run)
        return
    for place, values in read_certificates(file):
        yield place, verify(values)


def read_certificates(file: Path) -> Iterator[tuple[str, Any]]:
    """The certificates of a file, each with where it stands."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{file}: must be JSON in UTF-8") from None
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        whole = None
    if not text.strip() or whole == []:
        raise ValueError(f"{file}: holds no certificate")
    if whole is not None:
        for number, values in enumerate(whole if isinstance(whole, list) else [whole], start=1):
            yield f"certificate {number}", values
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"line {number}", json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{file}, line {number}: must be one JSON certificate a line: {error.msg}") from None
