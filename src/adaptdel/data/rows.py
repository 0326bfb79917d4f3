"""Rows of labelled files, checked: what is wrong is said in one sentence, with file and row."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from adaptdel.data.formats import Record, records

Label = int | str
Problem = Callable[[int, str], None]
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Row:
    """One row of a file, numbered from 1 (a CSV's header is not counted); what the file does not have is None."""

    number: int
    id: str | None
    text: str
    label: Label | None


def read_rows(
    path: str | Path,
    *,
    text: str = "text",
    label: str = "label",
    ids: str = "id",
    encoding: str = "utf-8",
    labelled: bool = False,
    on_problem: Problem | None = None,
) -> Iterator[Row]:
    """Read rows one by one, in bounded memory.

    With ``labelled``, every row must have a label. A row that cannot be used is an error that names file and row; with
    ``on_problem``, it is reported to that function (row number, sentence) and left out. What makes the rest unreadable
    is an error in any case.
    """
    number = 0
    loose = ".csv" in Path(path).suffixes or ".tsv" in Path(path).suffixes
    try:
        for number, record in enumerate(records(str(path), encoding), start=1):
            try:
                yield _row(number, record, text, label, ids, labelled=labelled, loose=loose)
            except ValueError as error:
                if on_problem is None:
                    raise ValueError(f"{path}, row {number}: {error}") from None
                on_problem(number, str(error))
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(f"{path}: the gzip file is damaged after row {number}: make or copy it anew") from None
    except csv.Error as error:
        raise ValueError(f"{path}, row {number + 1}: not CSV: {error}") from None


def _row(number: int, record: Record, text: str, label: str, ids: str, *, labelled: bool, loose: bool) -> Row:
    if isinstance(record, str):
        raise ValueError(record)
    for column in (text, label) if labelled else (text,):
        if column not in record:
            known = [str(name) for name in record]
            near = get_close_matches(column, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, known[:9])) or 'none'}"
            raise ValueError(f"no column {column!r}: {hint}")
    found = record[text]
    if not isinstance(found, str):
        raise ValueError(f"the column {text!r} must hold text, got {found!r:.40}")
    if not found.isascii() and any("\ud800" <= char <= "\udfff" for char in found):
        raise ValueError("not UTF-8: save the file as UTF-8, or name its encoding, such as latin-1")
    name, answer = record.get(ids), _label(record.get(label), label, loose=loose)
    if labelled and answer is None:
        raise ValueError(f"no label in the column {label!r}: give every row one, or leave the row out")
    return Row(number, None if name is None else str(name), found, answer)


def _label(value: Any, column: str, *, loose: bool) -> Label | None:
    """A label; ``loose`` reads numbers out of texts, as a CSV has nothing else."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return int(value) if loose and _WHOLE.fullmatch(value.strip()) else value
    if isinstance(value, (bool, int)) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise ValueError(f"the column {column!r} must hold whole numbers or names, got {value!r:.40}")
