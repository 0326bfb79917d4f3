"""Checkpoints of calibrations: what was measured, in working stores in which the same call finds it again."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptdel.calibration.search import Evaluation
from adaptdel.core.checks import check_fields
from adaptdel.files import parse_object, read_bytes
from adaptdel.working_store import WorkingStore, delete_store

_DELETE = "delete it to start again"


class CalibrationCheckpoint:
    """The evaluations of a calibration, in memory and, if a path is given, in a working store.

    Args:
        path: the file, or None. Evaluations of the same calibration are loaded; another calibration's are refused. The
            journal of a calibration that version 0.1 left unfinished is converted.
        settings: what the evaluations depend on, in plain values.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._evaluations: dict[tuple[int, float], Evaluation] = {}
        self._store: WorkingStore | None = None
        self._next = 1
        if path is not None:
            if path.is_file() and read_bytes(path).startswith(b"{"):
                _convert_journal(path, settings)
            self._store = WorkingStore(path, "calibration", settings)
            try:
                self._load(self._store, settings)
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

    def _load(self, store: WorkingStore, settings: Mapping[str, Any]) -> None:
        _check_same(store.path, store.settings, settings)
        for number, values in store.records():
            try:
                evaluation = Evaluation.from_dict(values)
            except ValueError as error:
                raise ValueError(f"{store.path}, record {number}: not an evaluation: {error}: {_DELETE}") from None
            self._evaluations[evaluation.bin, evaluation.keep] = evaluation
            self._next = number + 1


def _check_same(path: Path, stored: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    names = [name for name in {**settings, **stored} if stored.get(name) != settings.get(name)]
    if names:
        differences = "; ".join(
            f"{name!s:.60} was {stored.get(name)!r:.99} and is now {settings.get(name)!r:.99}" for name in names[:9]
        )
        raise ValueError(f"{path}: the checkpoint of another calibration ({' '.join(differences.split())}): {_DELETE}")


def _convert_journal(path: Path, settings: Mapping[str, Any]) -> None:
    """Replace the journal of version 0.1, JSON lines of which the first holds the settings, by a working store."""
    text = read_bytes(path)
    first, *lines = text[: text.rfind(b"\n") + 1].split(b"\n")[:-1] or [b""]  # a last line without its end is torn
    try:
        header = parse_object(first)
        if header.get("journal") != 1:
            raise ValueError(f"its format is {header.get('journal')!r:.60}, not 1")
        check_fields(header, {"settings": "an object"})
    except ValueError as error:
        raise ValueError(f"{path}: not a checkpoint of a calibration: {error}: {_DELETE}") from None
    _check_same(path, header["settings"], settings)
    partial = path.with_name(f"{path.name}.new")
    delete_store(partial)
    with WorkingStore(partial, "calibration", settings) as store:
        for number, line in enumerate(lines, start=2):
            try:
                store.put(number, Evaluation.from_dict(parse_object(line)).to_dict())
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not an evaluation: {error}: {_DELETE}") from None
    os.replace(partial, path)


class OutcomeCheckpoint:
    """The outcomes of candidate rates, in memory and, if a path is given, in a working store.

    Args:
        path: the file, or None. Outcomes of the same calibration are loaded; another calibration's are refused.
        settings: what the outcomes depend on, in plain values.
        columns: the names of the columns of an outcome.
    """

    def __init__(
        self, path: Path | None, settings: Mapping[str, Any], columns: Sequence[str] = ("answer", "radius")
    ) -> None:
        self._outcomes: dict[str, dict[str, Any]] = {}
        self._store: WorkingStore | None = None
        self._next = 1
        if path is not None:
            self._store = WorkingStore(path, "calibration", settings)
            try:
                _check_same(path, self._store.settings, settings)
                for number, values in self._store.records():
                    try:
                        check_fields(values, {"rate": "a text"} | dict.fromkeys(columns, "a list"))
                    except ValueError as error:
                        raise ValueError(f"{path}, record {number}: not an outcome: {error}: {_DELETE}") from None
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
