"""``adaptdel verify``: derive certificates again from their evidence: from votes, in ball arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.evidence import Plan
from adaptdel.certification.verify import NOT_CHECKED, verify
from adaptdel.core.checks import STEPS
from adaptdel.files import NotJSON, parse
from adaptdel.models.model_files import load_model
from adaptdel.runs.certify import Results, verify_run, verify_with_model
from adaptdel.runs.inputs import Source
from adaptdel.runs.storage import read_run

WORK_HELP = "Largest number of arithmetic steps per certificate, about a microsecond each. Very long inputs need more."
FORMS = "must be a JSON certificate, a list of them, or one per line"
USUAL_ALPHA = 0.05
FROM_MODEL = ", from the model"
SHOWN = 20  # failed certificates that are printed


@click.command("verify")
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--work", default=STEPS, show_default=True, type=click.IntRange(1), help=WORK_HELP)
@click.option("--model", type=click.Path(path_type=Path), help="Model of an exact run: derive rows from its weights.")
@click.option("--data", multiple=True, help="With --model: the data.  [default: the path that the run states]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def verify_command(
    context: click.Context, file: Path, work: int, model: Path | None, data: tuple[str, ...], as_json: bool
) -> None:
    """Verify certificates by deriving each radius again.

    Radii are derived from the votes, or from the integers of exact certificates. FILE is a JSON file with one
    certificate, a list of certificates or one certificate per line, or the folder of a run. For a run, the totals
    and the sampling schedule are checked as well. The model is not needed; for a run of exact certificates, --model
    checks the integers, too: they follow from the weights and the texts. The exit status is 1 if a check fails and
    2 if FILE cannot be read.
    """
    check = _Check(file, work, model, data)
    count, failed, unchecked = 0, set[str](), set[str]()
    run_holds = True
    rows = []
    for place, problems in check.results():
        if place == "the run":
            run_holds = False
        else:
            count += not place.endswith(FROM_MODEL)  # a row that was counted already
            if problems:
                failed.add(place.removesuffix(FROM_MODEL))
            if problems and all(problem.startswith(NOT_CHECKED) for problem in problems):
                unchecked.add(place)
        if as_json:
            rows.append({"place": place, "holds": not problems, "wrong": problems})
        elif problems and len(failed) <= SHOWN:
            verdict = "" if problems[0].startswith(NOT_CHECKED) else "does not hold: "
            click.echo(f"{place}: {verdict}{'; '.join(problems)}")
    if as_json:
        summary: dict[str, Any] = {
            "certificates": count,
            "failed": len(failed),
            "not_checked": len(unchecked),
            "run_holds": run_holds if file.is_dir() else None,
        }
        summary |= {"largest_alpha": check.alpha, "notes": check.notes}
        click.echo(json.dumps({**summary, "results": rows}, indent=2))
    else:
        if len(failed) > SHOWN:
            click.echo(f"and {len(failed) - SHOWN} more: --json lists them all")
        skipped = f"; {len(unchecked)} not checked" if unchecked else ""
        click.echo(f"{count - len(failed)} of {count} certificates hold, {' or '.join(sorted(check.how))}{skipped}")
    if check.alpha > USUAL_ALPHA * (1 + 1e-9):
        check.notes.append(
            f"alpha is up to {check.alpha:g}, more than the usual {USUAL_ALPHA:g}: each certificate may be wrong with "
            "that probability"
        )
    for note in check.notes:
        click.echo(f"{file}: note: {note}", err=True)
    context.exit(1 if failed or not run_holds else 0)


class _Check:
    """The checks of a file or a run.

    Attributes:
        alpha: the largest alpha of a certificate or of the run.
        how: how certificates were checked.
        notes: what a reader has to know: restricted attackers, registered code, another threshold than the model's.
    """

    def __init__(self, file: Path, work: int, model: Path | None, data: tuple[str, ...]) -> None:
        self.file, self.work, self.model, self.data = file, work, model, data
        self.how: set[str] = set()
        self.alpha = 0.0
        self.notes: list[str] = []

    def results(self) -> Results:
        """The problems of every certificate, with its place in the file or run."""
        if self.file.is_dir():
            run = read_run(self.file)
            yield from verify_run(run, work=self.work, note=lambda text: self._take([text]))
            self._take_notes(run.manifest.plan, run.manifest.plan.alpha)
            if self.model is not None:
                self.how = {"derived again from the weights of the model and the texts"}
                source = Source.of(run.manifest.data, self.data or None)
                model = load_model(self.model)
                for place, problems in verify_with_model(run, model, source, note=lambda text: self._take([text])):
                    if problems:
                        yield place if place == "the run" else f"{place}{FROM_MODEL}", problems
        elif self.model is not None:
            raise ValueError(f"{self.file}: --model needs the folder of a run")
        else:
            for place, values in _certificates(self.file):
                problems = verify(values, work=self.work)
                yield place, problems
                if not problems:
                    certificate = Certificate.from_dict(values)
                    self._take_notes(certificate.plan, certificate.alpha, certificate.evidence.notes())

    def _take_notes(self, plan: Plan, alpha: float, of_evidence: Iterable[str] = ()) -> None:
        """What has to be said of a certificate that holds, or of a run."""
        self.how.add(plan.verified)
        self.alpha = max(self.alpha, alpha)
        self._take([*plan.notes(), *of_evidence])

    def _take(self, notes: Iterable[str]) -> None:
        self.notes += [text for text in notes if text not in self.notes]


def _certificates(file: Path) -> list[tuple[str, Any]]:
    """The certificates of a file, each with its place in the file."""
    place = str(file)
    try:
        text = file.read_text(encoding="utf-8-sig")
        try:
            parsed = parse(text)
        except NotJSON:  # it may hold one certificate per line
            found = []
            for number, line in enumerate(text.split("\n"), start=1):
                if line.strip():
                    place = f"{file}, line {number}"
                    found.append((f"line {number}", parse(line)))
        else:
            rows = parsed if isinstance(parsed, list) else [parsed]
            found = [(f"certificate {number}", values) for number, values in enumerate(rows, start=1)]
    except ValueError as error:
        raise ValueError(f"{place}: {FORMS}: {error}") from None
    if not found:
        raise ValueError(f"{file}: holds no certificate")
    return found
