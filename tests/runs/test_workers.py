"""Certifying the inputs of a run: failures of the model and of the inputs lose nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptdel.engines.engine import ModelSource
from adaptdel.runs.inputs import RunInput
from adaptdel.runs.workers import certify_here
from tests.run_files import examples, picky


def test_a_model_that_fails_on_some_inputs(model: Path) -> None:
    jobs = [
        RunInput(n, str(n), text if n % 50 else text + " poison", None) for n, (text, _) in enumerate(examples(150), 1)
    ]
    records = {record["row"]: record for record in certify_here(picky(ModelSource(model).load().certifier()), jobs)}
    assert set(records) == set(range(1, 151))
    expected = {record["row"]: record for record in certify_here(ModelSource(model).load().certifier(), jobs)}
    for row, record in records.items():
        if row % 50:
            assert record | {"seconds": 0} == expected[row] | {"seconds": 0}
        else:
            assert record["problem"] == f"cannot read row {row}"


def test_inputs_that_break_off_lose_nothing(model: Path) -> None:
    def jobs() -> Any:
        yield from (RunInput(n, str(n), text, None) for n, (text, _) in enumerate(examples(10), 1))
        raise OSError("the disk is gone")

    records: list[Any] = []
    with pytest.raises(OSError, match="the disk is gone"):
        records.extend(certify_here(ModelSource(model).load().certifier(), jobs()))  # keeps what came before the error
    assert sorted(record["row"] for record in records) == list(range(1, 11))
