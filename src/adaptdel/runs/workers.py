"""Certify the inputs of a run: what the workers of an engine do, and the same in this process."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from adaptdel.certification.certifier import Certifier, Input
from adaptdel.engines.engine import Task, Work
from adaptdel.runs.inputs import RunInput
from adaptdel.runs.records import Record, problem_record, record_of


@dataclass(frozen=True)
class CertificationTask(Task):
    """Certify inputs of a run; results are its records.

    Attributes:
        certifier: what to certify with in this process; None in workers, which load the model from ``source``.
    """

    certifier: Certifier | None = None

    def load(self) -> Work:
        """A function from inputs to records."""
        certifier = self.certifier
        if certifier is None:
            assert self.source is not None
            certifier = self.source.load().certifier()

        def work(items: Iterable[tuple[int, RunInput]]) -> Iterator[tuple[int, Record]]:
            numbers: dict[int, int] = {}

            def inputs() -> Iterator[RunInput]:
                for number, run_input in items:
                    numbers[run_input.row] = number
                    yield run_input

            for record in certify_here(certifier, inputs()):
                yield numbers.pop(record["row"]), record

        return work

    def failed(self, item: Any, reason: str) -> Record:
        """A record that states the problem."""
        return problem_record(reason, id=item.id, row=item.row) | {"seconds": None}

    def size(self, item: Any) -> int:
        """The number of characters."""
        return len(item.text)

    def describe(self, items: Sequence[Any]) -> str:
        """The rows in the data."""
        return row_numbers(item.row for item in items)


def row_numbers(rows: Iterable[int]) -> str:
    """Rows of the data in a message.

    >>> row_numbers([4, 3])
    'rows 3, 4'
    """
    ordered = sorted(rows)
    return f"rows {', '.join(map(str, ordered[:8]))}" + (", ..." if len(ordered) > 8 else "")


def certify_here(certifier: Certifier, inputs: Iterable[RunInput]) -> Generator[Record, None, None]:
    """Certify in this process: the records in the order in which they are finished.

    If the model fails on an input, its record states the problem instead of a certificate.
    """
    last = time.perf_counter()
    for result in certifier(Input(run_input.text, f"row {run_input.row}", run_input) for run_input in inputs):
        run_input, certificate = result.input.tag, result.certificate
        if certificate is None:
            record = problem_record(str(result.failure), id=run_input.id, row=run_input.row)
        else:
            record = record_of(certificate, id=run_input.id, row=run_input.row, label=run_input.label)
        now = time.perf_counter()
        yield record | {"seconds": now - last}
        last = now
