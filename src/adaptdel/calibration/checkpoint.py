"""Checkpoints of calibrations: what was measured, in stores in which the same call finds it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adaptdel.calibration.search import Evaluation
from adaptdel.core.checks import check_fields
from adaptdel.store import START_AGAIN, Store


class CalibrationCheckpoint:
    """The evaluations of a calibration, in memory and, if a path is given, in a store.

    Args:
        path: the file, or None. Evaluations of the same calibration are loaded; another calibration's are refused.
        settings: what the evaluations depend on, in plain values.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._evaluations: dict[tuple[int, float], Evaluation] = {}
        self._store: Store | None = None
        self._next = 1
        if path is not None:
            self._store = Store(path, settings)
            try:
                self._load(self._store)
            except BaseException:
                self._store.close()
                raise

    def get(self, bin: int, keep: float) -> Evaluation | None:
        """The evaluation of a kept length in a bin, if there is one."""
        return self._evaluations.get((bin, keep))

    def add(self, evaluation: Evaluation) -> None:
        """Keep an evaluation; it is on the disk when this returns."""
        if self._store is not None:
            self._store.put(self._next, evaluation.to_dict())
            self._store.flush()
        self._next += 1
        self._evaluations[evaluation.bin, evaluation.keep] = evaluation

    def reuse(self, evaluations: Iterable[Evaluation]) -> None:
        """Add the evaluations of an earlier calibration; they are not written."""
        for evaluation in evaluations:
            self._evaluations.setdefault((evaluation.bin, evaluation.keep), evaluation)

    def __enter__(self) -> CalibrationCheckpoint:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._store is not None:
            self._store.__exit__(kind, error, trace)

    def _load(self, store: Store) -> None:
        for number, values in store.records():
            try:
                evaluation = Evaluation.from_dict(values)
            except ValueError as error:
                raise ValueError(f"{store.path}, record {number}: not an evaluation: {error}: {START_AGAIN}") from None
            self._evaluations[evaluation.bin, evaluation.keep] = evaluation
            self._next = number + 1


class OutcomeCheckpoint:
    """The outcomes of candidate rates, in memory and, if a path is given, in a store.

    Args:
        path: the file, or None. Outcomes of the same calibration are loaded; another calibration's are refused.
        settings: what the outcomes depend on, in plain values.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._outcomes: dict[str, dict[str, Any]] = {}
        self._store: Store | None = None
        self._next = 1
        if path is not None:
            self._store = Store(path, settings)
            try:
                for number, values in self._store.records():
                    try:
                        check_fields(values, {"rate": "a text", "answer": "a list", "radius": "a list"})
                    except ValueError as error:
                        raise ValueError(f"{path}, record {number}: not an outcome: {error}: {START_AGAIN}") from None
                    self._outcomes[values["rate"]] = values
                    self._next = number + 1
            except BaseException:
                self._store.close()
                raise

    def get(self, rate: str) -> dict[str, Any] | None:
        """The columns of a rate, if it was measured."""
        return self._outcomes.get(rate)

    def add(self, rate: str, columns: Mapping[str, Any]) -> None:
        """Keep the columns of a rate; they are on the disk when this returns."""
        self._outcomes[rate] = {"rate": rate, **columns}
        if self._store is not None:
            self._store.put(self._next, self._outcomes[rate])
            self._store.flush()
        self._next += 1

    def __enter__(self) -> OutcomeCheckpoint:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._store is not None:
            self._store.__exit__(kind, error, trace)
