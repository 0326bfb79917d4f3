"""Keys that occur more than once in a list of any length, in bounded memory."""

from __future__ import annotations

import shutil
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

KEY = 16  # bytes of a key
IN_MEMORY = 250_000  # rows whose keys are kept in memory; the keys of more are sorted on the disk
PARTS = 256  # files that keys are distributed to, by their first byte; and those of the occurrences, by row
PREFIX = ".repeats."  # of the folder with these files
_PAIR = np.dtype([("key", f"V{KEY}"), ("row", "<i8")])
_OCCURRENCE = np.dtype([("row", "<i8"), ("times", "<i8")])


class RepeatIndex:
    """The rows whose key occurred in an earlier row.

    Up to `IN_MEMORY` rows take 24 bytes of memory each. The pairs of more rows go to `PARTS` files by the first byte of
    their key, so that equal keys are in the same file; each file is sorted alone. A hundred million rows take 2.4 GB of
    disk space and 10 MB of memory.

    Args:
        folder: where the files are created; None for the folder of temporary files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._keys, self._rows = bytearray(), array("q")
        self._spill: Path | None = None
        self._last = 0
        self._complete = False

    def add(self, key: bytes, row: int) -> None:
        """Add the key of a row; rows come in increasing order."""
        if self._complete:
            raise RuntimeError("all keys must be added before occurrences are read")
        self._keys += key
        self._rows.append(row)
        self._last = row
        if len(self._rows) >= IN_MEMORY:
            self._write_out()

    def occurrences(self) -> Iterator[tuple[int, int]]:
        """(row, number of the occurrence of its key, from 2 on) in the order of the rows; can be called again."""
        self._finish()
        if self._spill is None:
            yield from _sorted_by_row(_occurrences(_pairs(self._keys, self._rows)))
            return
        for part in range(PARTS):
            yield from _sorted_by_row(np.fromfile(self._spill / f"rows-{part}", dtype=_OCCURRENCE))

    def close(self) -> None:
        """Delete the files."""
        if self._spill is not None:
            shutil.rmtree(self._spill, ignore_errors=True)

    def __enter__(self) -> RepeatIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write_out(self) -> None:
        """Append the pairs in memory to the files of their keys."""
        if self._spill is None:
            self._spill = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._folder))
        pairs = _pairs(self._keys, self._rows)
        self._keys, self._rows = bytearray(), array("q")
        _distribute(pairs, np.frombuffer(pairs["key"].tobytes(), np.uint8)[::KEY], self._spill, "keys")

    def _finish(self) -> None:
        """Find the occurrences in every file of keys, and distribute them to files of successive rows."""
        if self._complete:
            return
        self._complete = True
        if self._spill is None:
            return
        self._write_out()
        for part in range(PARTS):
            (self._spill / f"rows-{part}").touch()
        for part in range(PARTS):
            path = self._spill / f"keys-{part}"
            if path.exists():
                repeated = _occurrences(np.fromfile(path, dtype=_PAIR))
                _distribute(repeated, repeated["row"] * PARTS // (self._last + 1), self._spill, "rows")
                path.unlink()


def _pairs(keys: bytearray, rows: array[int]) -> npt.NDArray[Any]:
    pairs = np.empty(len(rows), dtype=_PAIR)
    pairs["key"] = np.frombuffer(bytes(keys), dtype=f"V{KEY}")
    pairs["row"] = rows
    return pairs


def _occurrences(pairs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The rows whose key occurred in an earlier row, with the number of the occurrence."""
    halves = np.frombuffer(pairs["key"].tobytes(), dtype="<u8").reshape(-1, 2)
    order = np.lexsort((pairs["row"], halves[:, 1], halves[:, 0]))
    same = np.zeros(len(order), dtype=bool)
    if len(order):
        same[1:] = (halves[order][1:] == halves[order][:-1]).all(axis=1)
    starts = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    repeated = np.empty(int(same.sum()), dtype=_OCCURRENCE)
    repeated["row"] = pairs["row"][order][same]
    repeated["times"] = (np.arange(len(order)) - starts + 1)[same]
    return repeated


def _distribute(values: npt.NDArray[Any], parts: npt.NDArray[Any], folder: Path, name: str) -> None:
    """Append each value to the file of its part."""
    order = np.argsort(parts, kind="stable")
    bounds = np.searchsorted(parts[order], np.arange(PARTS + 1))
    for part in np.flatnonzero(np.diff(bounds)).tolist():
        with (folder / f"{name}-{part}").open("ab") as file:
            file.write(values[order[bounds[part] : bounds[part + 1]]].tobytes())


def _sorted_by_row(values: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    for value in values[np.argsort(values["row"], kind="stable")]:
        yield int(value["row"]), int(value["times"])
