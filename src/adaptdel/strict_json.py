"""JSON from files that nobody vouches for: what a lenient reader would let pass is refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Collection
from math import isfinite
from typing import Any

DIGITS = 64  # of the longest whole number
DEPTH = 32  # lists and objects inside each other


class NotJSON(ValueError):
    """A text that is not JSON at all, as against JSON that is refused."""


def parse(text: str, *, finite: bool = True) -> Any:
    """The value of a JSON text.

    ValueError, without the name of the file, if it is not JSON, if a field stands there twice, if a number is not
    finite (unless ``finite`` is False) or absurdly long, or if values are nested too deeply to be read.
    """
    options: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _finite} if finite else {}
    try:
        values = json.loads(text, object_pairs_hook=_fields, parse_int=_whole, **options)
    except json.JSONDecodeError as error:
        raise NotJSON(f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise ValueError("values are nested too deeply") from None
    _check_depth(values)
    return values


def check_finite(values: Any, *, where: str = "", skip: Collection[str] = ()) -> None:
    """Raise at the first number that is not finite; what ``skip`` names, such as "model.training", may hold any."""
    if isinstance(values, dict):
        for name, value in values.items():
            place = f"{where}.{name}" if where else name
            if place not in skip:
                check_finite(value, where=place, skip=skip)
    elif isinstance(values, list):
        for value in values:
            check_finite(value, where=where, skip=skip)
    elif isinstance(values, float) and not isfinite(values):
        raise ValueError(f"{where} must hold finite numbers, got {values}")


def _check_depth(values: Any) -> None:
    level = [values] if isinstance(values, (dict, list)) else []
    for _ in range(DEPTH):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for group in inner for value in group if isinstance(value, (dict, list))]
        if not level:
            return
    raise ValueError("values are nested too deeply")


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the field {repeated!r} stands there twice")
    return values


def _refuse(text: str) -> Any:
    raise ValueError(f"a number must be finite, got {text}")


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"a number must be finite, got {text[:20]}")
    return number


def _whole(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"a whole number must have at most {DIGITS} digits, got {len(text)}")
    return int(text)
