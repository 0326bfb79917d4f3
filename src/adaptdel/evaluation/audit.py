"""Check a run that others made: every certificate is re-derived in ball arithmetic, every column compared."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import isclose
from typing import Any

from adaptdel.cardinality import log10_cardinality
from adaptdel.certificate import Certificate
from adaptdel.evaluation.runs import Run
from adaptdel.evaluation.schema import Record, certificate_of, label_text, rate_of, values_of
from adaptdel.verify import verify


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
        wrong = verify(values_of(certificate, record))
        expected = _expected(certificate, record)
    except (ValueError, TypeError, KeyError, IndexError, AssertionError) as error:
        return [f"not a certificate: {error}"]
    wrong += [f"{name} is {record[name]}, not {value}" for name, value in expected.items() if record[name] != value]
    area = _area(certificate, record["radius"])
    if record["log10_cardinality"] != area and not isclose(record["log10_cardinality"], area, rel_tol=1e-9):
        wrong.append(f"log10_cardinality is {record['log10_cardinality']}, not {area}")
    if certificate.alpha > manifest["alpha"] * (1 + 1e-12):
        wrong.append(f"its alpha is {certificate.alpha:g}, above that of the run, {manifest['alpha']:g}")
    return wrong


def _expected(certificate: Certificate, record: Record) -> dict[str, Any]:
    """What follows from the votes and the claimed radius without any rounding."""
    truth = record["truth"]
    return {
        "abstained": record["radius"] < 0,
        "correct": None if truth is None else truth == record["answer"],
        "rate": rate_of(certificate.noise, certificate.length),
        "calls": certificate.calls,
    }


def _area(certificate: Certificate, radius: int) -> float:
    """log10 of the number of inputs within a radius."""
    return log10_cardinality(radius, length=certificate.length, ops=certificate.ops)


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
