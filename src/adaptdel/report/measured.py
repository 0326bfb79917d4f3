"""The measured inputs of a run: all of them in memory, or for a large run counts of equal ones and a random sample.

A run of up to `IN_MEMORY` rows is read as it is. Of a larger one, inputs with the same length, radius, label, answer
and number of votes are counted together, so that all measures of a single run are exact, in memory for what occurs.
What needs single inputs, such as texts to show and the intervals of paired differences, uses a sample: the `SAMPLE`
inputs whose ids have the smallest hashes. Runs that hold the same inputs sample the same ones, and what two samples
have in common is a random sample of what the runs have in common.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from heapq import heappush, heappushpop
from math import nan
from typing import Any

import numpy as np

from adaptdel.core.threat import Threat
from adaptdel.measures.summary import OUTCOME_COLUMNS, Outcomes, outcomes
from adaptdel.runs.parts import RESTORE, table_of
from adaptdel.runs.records import CERTIFICATES, Record, label_value
from adaptdel.runs.storage import Run

IN_MEMORY = 100_000  # rows
SAMPLE = 20_000  # inputs
_ROW_COLUMNS = ("id", "row", "truth", "answer", "correct", "length", "rate", "input_hash", "problem")
_COLUMNS = tuple(dict.fromkeys((*OUTCOME_COLUMNS, *_ROW_COLUMNS)))
_NEVER_NULL = ("id", "row", "answer", "length", "rate", "radius", "log10_cardinality", "calls", "input_hash")
_COUNTED = ("length", "rate", "truth", "answer", "correct", "radius", "log10_cardinality", "calls")
_NO_COLUMNS = {"id": "", "input_hash": "", "problem": None}  # of a row that stands for several inputs


@dataclass(frozen=True)
class ReportInputs:
    """The inputs of a run that a report measures.

    Attributes:
        run: the run.
        outcomes: all of them; in a large run, rows stand for several inputs.
        sample: single inputs: all of them, or a random sample.
        digest: equal if two runs hold the same inputs with the same tokens.
        sampled_rows: the rows of a sample by id, in the order of the data; None if everything is in memory.
    """

    run: Run
    outcomes: Outcomes
    sample: Outcomes
    digest: str
    sampled_rows: dict[str, Record] | None = None

    @property
    def is_sampled(self) -> bool:
        """Whether `sample` and `rows` are only a part of the inputs."""
        return self.sampled_rows is not None

    @cached_property
    def rows(self) -> dict[str, Record]:
        """The rows of the table by id, without the votes; rows without a certificate are left out."""
        if self.sampled_rows is not None:
            return self.sampled_rows
        return {row["id"]: row for row in self.run.records(_ROW_COLUMNS) if row["problem"] is None}


def read_inputs(run: Run) -> ReportInputs:
    """Read the measured inputs of a run; ValueError if a row with a certificate lacks a value that is measured."""
    if _check_rows(run) > IN_MEMORY:
        return _Counts(run).inputs()
    measured = _outcomes(run, run.columns(OUTCOME_COLUMNS), times_of(run))
    digest = InputDigest()
    for name, tokens in zip(measured.ids, measured.hashes, strict=True):
        digest.add(name, tokens)
    return ReportInputs(run, measured, measured, str(digest))


def times_of(run: Run) -> dict[str, float]:
    """Seconds by id, where the run has them."""
    pairs = zip(run.times["id"].to_pylist(), run.times["seconds"].to_pylist(), strict=True)
    return {name: seconds for name, seconds in pairs if seconds is not None}


def _outcomes(run: Run, table: Any, seconds: dict[str, float]) -> Outcomes:
    return outcomes(table, seconds, threat=Threat(run.manifest["ops"]), label_value=label_value)


def _check_rows(run: Run) -> int:
    """The number of rows; ValueError if a row with a certificate lacks a value that is measured."""
    rows = 0
    for batch in run.batches((*_NEVER_NULL, "problem")):
        for name in _NEVER_NULL:
            if batch.column(name).null_count:
                for place in np.flatnonzero(batch.column(name).is_null().to_numpy(zero_copy_only=False)).tolist():
                    if batch.column("problem")[place].as_py() is None:
                        raise ValueError(f"{run.file}, row {rows + place + 1} of the table: {name} is null: {RESTORE}")
        sizes, radii = (batch.column(name).to_numpy(zero_copy_only=False) for name in ("log10_cardinality", "radius"))
        for place in np.flatnonzero((radii >= 1) & ~np.isfinite(sizes)).tolist():
            if batch.column("problem")[place].as_py() is None:
                where = f"{run.file}, row {rows + place + 1} of the table"
                raise ValueError(f"{where}: log10_cardinality must be finite, got {sizes[place]}: {RESTORE}")
        rows += batch.num_rows
    return rows


class InputDigest:
    """A hash of a set of inputs, in any order: the sum of the hashes of their ids and tokens."""

    def __init__(self, total: int = 0) -> None:
        self.total = total

    def add(self, name: str, tokens: str) -> None:
        """Add an input by its id and the hash of its tokens."""
        self.total += int.from_bytes(blake2b(f"{name}\0{tokens}".encode("utf-8", "replace"), digest_size=16).digest())

    def __str__(self) -> str:
        return f"{self.total % 2**128:032x}"


class _Counts:
    """Inputs that are read one by one: counts of equal ones, the sample, and the digests."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.counts: dict[tuple[Any, ...], list[Any]] = {}  # values: inputs, seconds, inputs with a time
        self.problems = 0
        self.digests = {True: InputDigest(), False: InputDigest()}  # of inputs with and without a label
        self.drawn: list[tuple[int, int, Record]] = []  # a heap, the largest hash first
        seconds = run.seconds()
        for batch in run.batches(_COLUMNS):
            for record in batch.to_pylist():
                self._add(record, next(seconds, None))

    def _add(self, record: Record, seconds: float | None) -> None:
        if record["problem"] is not None:
            self.problems += 1
            return
        entry = self.counts.setdefault(tuple([record[name] for name in _COUNTED]), [0, 0.0, 0])
        entry[0] += 1
        if seconds is not None:
            entry[1] += seconds
            entry[2] += 1
        self.digests[record["correct"] is not None].add(record["id"], record["input_hash"])
        key = -_sampling_key(record["id"])
        if len(self.drawn) < SAMPLE:
            heappush(self.drawn, (key, record["row"], record | {"seconds": seconds}))
        elif key > self.drawn[0][0]:
            heappushpop(self.drawn, (key, record["row"], record | {"seconds": seconds}))

    def inputs(self) -> ReportInputs:
        """The measured inputs: those with labels, if there are any."""
        labelled = any(key[4] is not None for key in self.counts) or not self.counts
        used = {key: value for key, value in self.counts.items() if (key[4] is not None) or not labelled}
        everything = sum(value[0] for value in self.counts.values())
        rows = [dict(zip(_COUNTED, key, strict=True)) | _NO_COLUMNS for key in used]
        count, seconds, timed = np.array(list(used.values()), dtype=np.float64).reshape(-1, 3).T
        measured = replace(
            _outcomes(self.run, _table(rows), {}),
            count=count.astype(np.int64),
            timed=timed.astype(np.int64),
            seconds=np.where(timed > 0, seconds, nan),
            problems=self.problems,
            unlabelled=everything - int(count.sum()),
        )
        drawn = [record for _, _, record in sorted(self.drawn, key=lambda item: item[1])]
        single = [record for record in drawn if record["correct"] is not None or not labelled]
        times = {record["id"]: record["seconds"] for record in single if record["seconds"] is not None}
        digest = InputDigest(self.digests[True].total + (0 if labelled else self.digests[False].total))
        sample = _outcomes(self.run, _table(single), times)
        by_id = {record["id"]: record for record in drawn}
        return ReportInputs(self.run, measured, sample, str(digest), by_id)


def _sampling_key(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=8, person=b"report").digest())


def _table(records: list[Record]) -> Any:
    return table_of(records, CERTIFICATES).select(list(OUTCOME_COLUMNS))
