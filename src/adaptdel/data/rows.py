"""Rows of labelled files, checked: what is wrong is said in one sentence, with file and row."""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptdel.data.formats import Columns, Record, UnreadableError, missing_column, not_in, records

Label = int | str
Problem = Callable[[int, str], None]
_SURROGATE = re.compile("[\ud800-\udfff]")
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
    loose = any(suffix.lower() in (".csv", ".tsv") for suffix in Path(path).suffixes)
    try:
        for number, record in enumerate(records(str(path), encoding, Columns(text, label, ids)), start=1):
            try:
                yield _row(number, record, text, label, ids, labelled=labelled, loose=loose)
            except ValueError as error:
                if on_problem is None:
                    raise ValueError(f"{path}, row {number}: {error}") from None
                on_problem(number, str(error))
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(f"{path}: the gzip file is damaged after row {number}: make or copy it anew") from None
    except csv.Error as error:
        advice = "put fields that hold commas, quotes or line breaks in double quotes"
        raise ValueError(f"{path}, row {number + 1}: not CSV: {error}: {advice}") from None
    except UnicodeError as error:
        raise ValueError(f"{path}, row {number + 1}: {not_in(encoding, error)}") from None
    except UnreadableError as error:
        raise ValueError(f"{path}, row {number + 1}: {error}") from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None


def _row(number: int, record: Record, text: str, label: str, ids: str, *, labelled: bool, loose: bool) -> Row:
    if isinstance(record, str):
        raise ValueError(record)
    for column in (text, label) if labelled else (text,):
        if column not in record:
            raise ValueError(missing_column(column, [str(name) for name in record]))
    found = record[text]
    if not isinstance(found, str):
        raise ValueError(f"the column {text!r} must hold text, got {_short(found)}")
    name, answer = record.get(ids), _label(record.get(label), label, loose=loose)
    if labelled and answer is None:
        raise ValueError(f"no label in the column {label!r}: give every row one, or leave the row out")
    name = None if name is None else str(name)
    for column, value in ((text, found), (label, answer), (ids, name)):
        if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value):
            if loose:
                raise ValueError("not UTF-8: save the file as UTF-8, or name its encoding, such as latin-1")
            raise ValueError(f"the column {column!r} holds half of a surrogate pair, which is no character: remove it")
    return Row(number, name, found, answer)


def _label(value: Any, column: str, *, loose: bool) -> Label | None:
    """A label; ``loose`` reads numbers out of texts, as a CSV has nothing else."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return int(value) if loose and _WHOLE.fullmatch(value.strip()) else value
    if isinstance(value, (bool, int)) or (isinstance(value, float) and value.is_integer()):
        if abs(value) >= 2**63:
            raise ValueError(f"the column {column!r} must hold names or numbers below 2**63, got {_short(value)}")
        return int(value)
    raise ValueError(f"the column {column!r} must hold whole numbers or names, got {_short(value)}")


def _short(value: Any) -> str:
    """A value in a few characters, also if all of it would take millions or is nested deeply."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return repr(value)[:40] if not isinstance(value, (str, bytes)) else repr(value[:40])
