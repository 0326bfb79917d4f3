"""``adaptdel verify``: derive certificates again from their votes, in ball arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from adaptdel.certification.verify import NOT_CHECKED, USUAL_ALPHA, verify
from adaptdel.cli.options import data_path
from adaptdel.core.bounds import OWN_BOUNDS, describe_bound
from adaptdel.core.checks import STEPS
from adaptdel.files import NotJSON, parse
from adaptdel.models.model_files import load_model
from adaptdel.runs.inputs import Source
from adaptdel.runs.storage import Run
from adaptdel.text.data import DrawnRows

WORK_HELP = "Largest number of arithmetic steps per certificate, about a microsecond each. Very long inputs need more."
FORMS = "must be a JSON certificate, a list of them, or one per line"
FROM_MODEL = ", from the model"
SHOWN = 20  # failed certificates that are printed
Results = Iterator[tuple[str, list[str]]]  # (place in the file, problems) for every certificate


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
    """Check certificates: derive each radius again.

    Radii are derived from the votes, or from the integers of exact certificates. FILE is a JSON file with one
    certificate, a list of certificates or one certificate per line, or the folder of a run. For a run, the totals
    and the sampling schedule are checked as well. The model is not needed; for a run of exact certificates, --model
    checks the integers, too: they follow from the weights and the texts. The exit status is 1 if a check fails and
    2 if FILE cannot be read.
    """
    check = _Check(file, work, model, data)
    count, failed = 0, set[str]()
    run_holds = True
    rows = []
    for place, problems in check.results():
        if place == "the run":
            run_holds = False
        else:
            count += not place.endswith(FROM_MODEL)  # a row that was counted already
            if problems:
                failed.add(place.removesuffix(FROM_MODEL))
        if as_json:
            rows.append({"place": place, "holds": not problems, "wrong": problems})
        elif problems and len(failed) <= SHOWN:
            verdict = "" if problems[0].startswith(NOT_CHECKED) else "does not hold: "
            click.echo(f"{place}: {verdict}{'; '.join(problems)}")
    if as_json:
        summary: dict[str, Any] = {
            "certificates": count,
            "failed": len(failed),
            "run_holds": run_holds if file.is_dir() else None,
        }
        summary |= {"largest_alpha": check.alpha, "registered_bounds": sorted(check.bounds)}
        click.echo(json.dumps({**summary, "results": rows}, indent=2))
    else:
        if len(failed) > SHOWN:
            click.echo(f"and {len(failed) - SHOWN} more: --json lists them all")
        click.echo(f"{count - len(failed)} of {count} certificates hold, {check.how}")
    for bound in sorted(check.bounds):
        click.echo(
            f"{file}: note: {describe_bound(bound)}: radii were derived by it again, its proof is its author's",
            err=True,
        )
    if check.alpha > USUAL_ALPHA * (1 + 1e-9):
        click.echo(
            f"{file}: note: alpha is up to {check.alpha:g}, more than the usual {USUAL_ALPHA:g}: each certificate may "
            "be wrong with that probability",
            err=True,
        )
    context.exit(1 if failed or not run_holds else 0)


class _Check:
    """The checks of a file or a run.

    Attributes:
        alpha: the largest alpha of a certificate or of the run.
        bounds: the registered bounds that radii follow from.
    """

    def __init__(self, file: Path, work: int, model: Path | None, data: tuple[str, ...]) -> None:
        self.file, self.work, self.model, self.data = file, work, model, data
        self.how = "proven in ball arithmetic"
        self.alpha = 0.0
        self.bounds: set[str] = set()

    def results(self) -> Results:
        """The problems of every certificate, with its place in the file or run."""
        if self.file.is_dir():
            from adaptdel.runs.rederive import verify_run
            from adaptdel.runs.storage import read_run

            run = read_run(self.file)
            yield from verify_run(run, work=self.work, note=self._note)
            self._take_note(run.manifest.get("alpha"), run.manifest.get("bound"))
            if "method" in run.manifest:
                self.how = "derived again in integers"
            if self.model is not None:
                yield from self._with_model(run)
            return
        if self.model is not None:
            raise ValueError(f"{self.file}: --model needs the folder of a run")
        for place, values in read_certificates(self.file):
            yield place, verify(values, work=self.work)
            if isinstance(values, dict):
                derived = values.get("derived")
                self._take_note(derived.get("alpha") if isinstance(derived, dict) else None, values.get("bound"))

    def _with_model(self, run: Run) -> Results:
        from adaptdel.runs.rederive import verify_with_model

        stated = run.manifest["data"]
        path = data_path(self.data or tuple(stated["path"] if isinstance(stated["path"], list) else [stated["path"]]))
        drawn = DrawnRows(**stated["sample"]) if "sample" in stated else None
        source = Source(path, stated["text"], stated["label"], stated["encoding"], drawn)
        assert self.model is not None
        self.how = "derived again from the weights of the model and the texts"
        for place, problems in verify_with_model(run, load_model(self.model), source):
            if problems:
                yield place if place == "the run" else f"{place}{FROM_MODEL}", problems

    def _take_note(self, alpha: Any, bound: Any) -> None:
        if isinstance(alpha, float):
            self.alpha = max(self.alpha, alpha)
        if isinstance(bound, str) and bound not in OWN_BOUNDS:
            self.bounds.add(bound)

    def _note(self, text: str) -> None:
        click.echo(f"{self.file}: {text}", err=True)


def read_certificates(file: Path) -> list[tuple[str, Any]]:
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
