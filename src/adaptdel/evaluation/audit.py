"""Check a run that others made: every certificate is re-derived in ball arithmetic, every column compared."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from adaptdel.evaluation.runs import Run
from adaptdel.evaluation.schema import Record, certificate_of, label_text, record_of, truth_of
from adaptdel.verify import verify

_DERIVED = ("radius", "abstained", "correct", "rate", "calls", "log10_cardinality")


def audit(run: Run) -> Iterator[tuple[str, list[str]]]:
    """What is wrong with every row that has a certificate, with where it stands; then with the run as a whole."""
    classes = [label_text(label) for label in run.manifest["classes"]]
    problems = 0
    for record in run.records():
        if record["problem"] is None:
            yield f"row {record['row']} (id {record['id']})", check_record(run.manifest, record, classes)
        else:
            problems += 1
    wrong = _whole(run, problems)
    if wrong:
        yield "the run", wrong


def check_record(manifest: dict[str, Any], record: Record, classes: list[str]) -> list[str]:
    """What is wrong with a row; nothing, if its certificate holds and all else follows from it."""
    if record["answer"] not in classes:
        return [f"the answer {record['answer']} is not one of the classes"]
    try:
        certificate = certificate_of(manifest, record)
        values = certificate.to_dict()
        expected = record_of(certificate, id=record["id"], row=record["row"], truth=truth_of(record))
    except (ValueError, TypeError, KeyError, IndexError, AssertionError) as error:
        return [f"not a certificate: {error}"]
    values["derived"]["radius"], values["digest"] = record["radius"], record["digest"]
    wrong = verify(values)
    wrong += [
        f"{name} is {record[name]}, and {expected[name]} follows from the votes"
        for name in _DERIVED
        if record[name] != expected[name]
    ]
    if certificate.alpha > manifest["alpha"] * (1 + 1e-12):
        wrong.append(f"its alpha is {certificate.alpha:g}, above that of the run, {manifest['alpha']:g}")
    return wrong


def _whole(run: Run, problems: int) -> list[str]:
    wrong = []
    ids, rows = run.table["id"].drop_null(), run.table["row"].to_pylist()
    if len(ids.unique()) < len(ids) or any(b <= a for a, b in pairwise(rows)):
        wrong.append("rows stand there twice, or out of order")
    totals = run.manifest.get("totals")
    if totals and (totals["inputs"], totals["problems"]) != (len(rows), problems):
        wrong.append(
            f"the manifest counts {totals['inputs']} rows, {totals['problems']} of them with a problem; there "
            f"are {len(rows)} and {problems}"
        )
    return wrong
