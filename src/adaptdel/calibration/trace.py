"""The journal of a calibration: every finished evaluation, durably, so that a run that was stopped goes on.

A file of JSON lines. The first names the run: settings, model and data. Each further one is an evaluation, written to
the disk before the next begins.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adaptdel.calibration.objective import Evaluation
from adaptdel.checks import check_fields
from adaptdel.files import parse_object, read_bytes, write_text

FORMAT = 1
_ANEW = "delete it to begin anew"


class Journal:
    """The evaluations of one run, in memory and, if a path is given, in a file.

    Args:
        path: the file, or None. One of the same run is replayed, a torn last line being dropped; one of another run
            is refused.
        settings: what tells runs apart, in plain values.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._found: dict[tuple[int, float], Evaluation] = {}
        if path is not None:
            self._open(path, settings)

    def get(self, bin: int, keep: float) -> Evaluation | None:
        """The evaluation of a kept length in a bin, if it has been made."""
        return self._found.get((bin, keep))

    def add(self, evaluation: Evaluation) -> None:
        """Keep an evaluation; it is on the disk when this returns."""
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(evaluation.to_dict()) + "\n")
                file.flush()
                os.fsync(file.fileno())
        self._found[evaluation.bin, evaluation.keep] = evaluation

    def remember(self, evaluations: Iterable[Evaluation]) -> None:
        """Take over what was measured elsewhere; it is not written."""
        for evaluation in evaluations:
            self._found.setdefault((evaluation.bin, evaluation.keep), evaluation)

    def _open(self, path: Path, settings: Mapping[str, Any]) -> None:
        text = read_bytes(path) if path.exists() else b""
        if not text:
            write_text(path, json.dumps({"journal": FORMAT, "settings": settings}) + "\n")
            return
        whole = text[: text.rfind(b"\n") + 1]
        lines = whole.split(b"\n")[:-1]
        _check(path, _header(path, lines), settings)
        for number, line in enumerate(lines[1:], start=2):
            try:
                evaluation = Evaluation.from_dict(parse_object(line))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: not an evaluation: {error}: {_ANEW}") from None
            self._found[evaluation.bin, evaluation.keep] = evaluation
        if len(whole) < len(text):  # a line that was being written when the run was stopped
            with path.open("rb+") as file:
                file.truncate(len(whole))


def _header(path: Path, lines: list[bytes]) -> Mapping[str, Any]:
    try:
        first = parse_object(lines[0] if lines else b"")
        if first.get("journal") != FORMAT:
            raise ValueError(f"its format is {first.get('journal')!r:.60}, not {FORMAT}")
        check_fields(first, {"settings": "an object"})
        stored: Mapping[str, Any] = first["settings"]
        return stored
    except ValueError as error:
        raise ValueError(f"{path}: not a journal of a calibration: {error}: {_ANEW}") from None


def _check(path: Path, stored: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    names = [name for name in {**settings, **stored} if stored.get(name) != settings.get(name)]
    if names:
        differences = "; ".join(
            f"{name!s:.60} was {stored.get(name)!r:.99} and is now {settings.get(name)!r:.99}" for name in names[:9]
        )
        raise ValueError(f"{path}: the journal of another calibration ({' '.join(differences.split())}): {_ANEW}")
