"""``adaptdel verify``: certificates re-derived in ball arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from adaptdel.certification.verify import USUAL_ALPHA, verify
from adaptdel.core.checks import STEPS
from adaptdel.files import NotJSON, parse

WORK_HELP = "Steps of arithmetic allowed for each certificate, about a microsecond each; absurd lengths need more."
Checked = Iterator[tuple[str, list[str]]]


@click.command("verify")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--public-key", type=click.Path(path_type=Path), help="Check also that the run was signed with this key.")
@click.option("--work", default=STEPS, show_default=True, type=click.IntRange(1), help=WORK_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")
@click.pass_context
def verify_command(context: click.Context, file: Path, public_key: Path | None, work: int, as_json: bool) -> None:
    """Re-derive every certificate in FILE from its votes, and say which do not hold.

    FILE holds one certificate, a list of them, or one a line (JSON); or it is the folder of a run, of which totals and
    looks are checked as well. Exit status 1 if anything does not hold.
    """
    check = _Check(file, work)
    count = failed = 0
    whole = True
    rows = []
    for place, wrong in check.results(public_key):
        if place == "the run":
            whole = False
        else:
            count += 1
            failed += bool(wrong)
        if as_json:
            rows.append({"place": place, "holds": not wrong, "wrong": wrong})
        elif wrong:
            click.echo(f"{place}: does not hold: {'; '.join(wrong)}")
    if as_json:
        summary: dict[str, Any] = {
            "certificates": count,
            "failed": failed,
            "run_holds": whole if file.is_dir() else None,
        }
        summary |= {"largest_alpha": check.alpha, "signature": check.signature}
        click.echo(json.dumps({**summary, "results": rows}, indent=2))
    else:
        click.echo(f"{count - failed} of {count} certificates hold, proven in ball arithmetic")
        if check.signature == "valid":
            click.echo("the signature is valid for the public key")
    if check.alpha > USUAL_ALPHA * (1 + 1e-9):
        click.echo(
            f"{file}: note: alpha is up to {check.alpha:g}, more than the usual {USUAL_ALPHA:g}: so likely is each "
            "certificate to be wrong",
            err=True,
        )
    context.exit(1 if failed or not whole else 0)


class _Check:
    """What is checked, and what is worth a note.

    Attributes:
        alpha: the largest error level of a certificate or of the run.
        signature: "valid", "not valid", "not checked", or None if there is none and none was asked for.
    """

    def __init__(self, file: Path, work: int) -> None:
        self.file, self.work = file, work
        self.alpha = 0.0
        self.signature: str | None = None

    def results(self, public_key: Path | None) -> Checked:
        """What is wrong with every certificate of a file or of a run, with where it stands."""
        if self.file.is_dir():
            yield from self._run(public_key)
            return
        if public_key is not None:
            raise ValueError(f"{self.file}: only runs are signed: give the folder of one, or no --public-key")
        for place, values in read_certificates(self.file):
            yield place, verify(values, work=self.work)
            self._see(values.get("derived") if isinstance(values, dict) else None)

    def _run(self, public_key: Path | None) -> Checked:
        from adaptdel.runs.audit import audit
        from adaptdel.runs.signature import check_signature, fingerprint, is_signed, read_public_key
        from adaptdel.runs.storage import read_run

        public = None if public_key is None else read_public_key(public_key)
        run = read_run(self.file)
        if not run.finished:
            self._note("the run is not finished: what it has so far is checked")
        if public is not None:
            wrong = check_signature(self.file, public)
            self.signature = "not valid" if wrong else "valid"
            if wrong:
                yield "the run", wrong
        elif is_signed(self.file):
            self.signature = "not checked"
            self._note(f"the run is signed (key {fingerprint(self.file)}), which was not checked: give --public-key")
        yield from audit(run, work=self.work, note=self._note)
        self._see(run.manifest)

    def _see(self, values: Any) -> None:
        alpha = values.get("alpha") if isinstance(values, dict) else None
        if isinstance(alpha, float):
            self.alpha = max(self.alpha, alpha)

    def _note(self, text: str) -> None:
        click.echo(f"{self.file}: {text}", err=True)


def read_certificates(file: Path) -> Iterator[tuple[str, Any]]:
    """The certificates of a file, each with where it stands."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{file}: must be JSON in UTF-8") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise ValueError(f"{file}: holds no certificate")
    if len(lines) > 1 and _is_json(lines[0][1]):
        for number, line in lines:
            try:
                values = parse(line)
            except ValueError as error:
                raise ValueError(f"{file}, line {number}: must be one JSON certificate a line: {error}") from None
            yield f"line {number}", values
        return
    try:
        whole = parse(text)
    except ValueError as error:
        raise ValueError(f"{file}: must be a JSON certificate, a list of them, or one a line: {error}") from None
    if whole == []:
        raise ValueError(f"{file}: holds no certificate")
    for number, values in enumerate(whole if isinstance(whole, list) else [whole], start=1):
        yield f"certificate {number}", values


def _is_json(text: str) -> bool:
    """Whether a text is JSON, be it one that is refused."""
    try:
        parse(text)
    except NotJSON:
        return False
    except ValueError:
        return True
    return True
