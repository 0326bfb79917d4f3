"""Checks of arguments and a limit on work.

A failed check raises ValueError with one sentence that names the argument, its value and what is accepted. The limit on
work stops the derivation of a certificate from an untrusted file that would take too long.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

LARGEST_LENGTH = 2**53  # lengths are exact in a double up to here
SMALLEST_ALPHA = 1e-100
STEPS = 30_000_000  # the default limit on work: about half a minute; a text of a million tokens needs four fifths of it


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def check_int(name: str, value: Any, *, least: int | None = 0, most: int | None = None) -> int:
    """Return ``value`` as an int, or raise if it is not an integer in the range."""
    limits = [f"at least {least}"] if least is not None else []
    if most is not None and (most < LARGEST_LENGTH or (isinstance(value, int) and value > most)):
        limits.append(f"at most {most}")
    accepted = "an integer" + (f" of {' and '.join(limits)}" if limits else "")
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be {accepted}, got {_show(value)}") from None
    if (least is not None and number < least) or (most is not None and number > most):
        raise ValueError(f"{name} must be {accepted}, got {_show(number)}")
    return number


def check_real(name: str, value: Any, *, accepted: str, least: float, most: float, open_ends: bool = False) -> float:
    """Return ``value`` as a float, or raise if it is not a number in the range."""
    try:
        if isinstance(value, (str, bytes, bool, np.bool_)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be {accepted}, got {_show(value)}") from None
    inside = least < number < most if open_ends else least <= number <= most
    if not inside:  # also catches NaN
        raise ValueError(f"{name} must be {accepted}, got {_show(value)}")
    return number


def check_probability(name: str, value: Any) -> float:
    """Return one probability."""
    return check_real(name, value, accepted="a probability in [0, 1]", least=0.0, most=1.0)


def check_alpha(value: Any, name: str = "alpha") -> float:
    """Return an error level in (0, 1) that is not so small that fractions of it underflow."""
    number = check_real(name, value, accepted="in (0, 1)", least=0.0, most=1.0, open_ends=True)
    if number < SMALLEST_ALPHA:
        raise ValueError(f"{name} must be in (0, 1) and at least {SMALLEST_ALPHA:g}, got {number!r}")
    return number


def check_probabilities(name: str, value: Any) -> FloatArray:
    """Return a scalar or array of probabilities as an array."""
    try:
        if np.asarray(value).dtype.kind not in "fiuO" and np.size(value):
            raise TypeError
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a probability in [0, 1], got {_show(value)}") from None
    wrong = ~((array >= 0.0) & (array <= 1.0))
    if wrong.any():
        raise ValueError(f"{name} must be a probability in [0, 1], got {array[wrong][0]}")
    return array


def check_ints(name: str, value: Any) -> IntArray:
    """Return a scalar or array of integers as an array."""
    try:
        array = np.asarray(value)
        if array.size == 0:
            return np.zeros(array.shape, dtype=np.int64)
        if array.dtype.kind not in "iu":
            raise TypeError
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be an integer of at least 0, got {_show(value)}") from None
    wrong = (array < 0) | (array > LARGEST_LENGTH)
    if wrong.any():
        limit = "at least 0" if (array < 0).any() else f"at most {LARGEST_LENGTH}"
        raise ValueError(f"{name} must be an integer of {limit}, got {array[wrong][0]}")
    return array.astype(np.int64)


def check_names(what: str, values: Any, required: Iterable[str], optional: Iterable[str] = ()) -> Mapping[str, Any]:
    """Return a dictionary that has all required fields and no others than these and the optional ones."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{what} must be a dictionary, got {_show(values)}")
    needed = list(required)
    for name in needed:
        if name not in values:
            raise ValueError(f"{what} must have the field {name!r}, which is missing")
    check_known_fields(values, [*needed, *optional])
    return values


def check_known_fields(values: Mapping[str, Any], known: list[str]) -> None:
    """Raise for the first name that is not known, and suggest the closest known name."""
    for name in values:
        if name not in known:
            closest = get_close_matches(str(name), known, n=1, cutoff=0.5)
            hint = f"did you mean {closest[0]!r}?" if closest else f"the fields are {', '.join(known)}"
            raise ValueError(f"{name!r:.60} is not a field: {hint}")


def check_text(name: str, value: Any) -> str:
    """Return ``value`` if it is a text."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {_show(value)}")
    return value


def check_list(name: str, values: Any, of: str = "numbers") -> list[Any]:
    """Return the elements of an iterable that is not a text."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of {of}, got {_show(values)}")
    return list(values)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    if not isinstance(value, str) or value not in choices:
        accepted = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {accepted}, got {_show(value)}")
    return value


def token_key(token: Any) -> Hashable:
    """A key that is equal for two tokens only if no classifier can tell them apart.

    In Python 1, True, 1.0 and ``np.int64(1)`` are equal, and so are 0.0 and -0.0, but a classifier may treat them
    differently. An object of any other class is identified by its ``id``, because its class may define equality in any
    way. The key is valid as long as the object exists.
    """
    kind = type(token)
    if kind in (str, bytes, int, bool, type(None)):
        return kind, token
    if kind in (float, complex):
        return kind, repr(token)
    if kind is tuple:
        return kind, tuple(map(token_key, token))
    if isinstance(token, np.generic):
        return kind, token.dtype.str, token.tobytes()
    return kind, id(token)


TYPES: dict[type, str] = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}
_TYPES = {words: kind for kind, words in TYPES.items()}


def check_type(kind: type, value: Any, name: str) -> Any:
    """Return a value of a file if it has the type, one of `TYPES`, and can be written again."""
    accepted = (int, float) if kind is float else (tuple, list) if kind is list else kind
    fits = isinstance(value, accepted) and (kind is bool or not isinstance(value, bool))
    if fits and isinstance(value, (int, float)):
        fits = abs(value) < 2**63  # neither infinite nor NaN
    if fits and isinstance(value, str):  # half of a surrogate pair, which JSON allows but UTF-8 cannot encode
        fits = value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)
    if not fits:
        raise ValueError(f"{name} must be {TYPES[kind]}, got {_show(value)}")
    return value


def check_fields(values: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
    """Raise unless the values read from a file have the given types; a type that ends in "?" may be null or missing.

    >>> check_fields({"seed": "0"}, {"seed": "an integer"})
    Traceback (most recent call last):
    ValueError: seed must be an integer, got '0'
    """
    for name, kind in kinds.items():
        if values.get(name) is None and kind.endswith("?"):
            continue
        if name not in values:
            raise ValueError(f"{name} is missing")
        check_type(_TYPES[kind.removesuffix("?")], values[name], name)


class TooMuchWork(ValueError):
    """A derivation needs more steps than are allowed."""


_steps_left: ContextVar[list[int] | None] = ContextVar("adaptdel_steps_left", default=None)


@contextmanager
def limited(steps: int | None) -> Iterator[None]:
    """Raise `TooMuchWork` when the work inside the block exceeds ``steps``; None for no limit.

    A step takes about a microsecond: a term of a sum in ball arithmetic, or a neighbour in double precision.
    """
    token = _steps_left.set(None if steps is None else [steps])
    try:
        yield
    finally:
        _steps_left.reset(token)


def spend(steps: int) -> None:
    """Count steps that are about to be taken against the limit, if there is one."""
    left = _steps_left.get()
    if left is not None:
        left[0] -= steps
        if left[0] < 0:
            raise TooMuchWork("it needs more steps than are allowed")


def check_format(value: Any, expected: int) -> None:
    """Raise unless a file has the format that this version reads."""
    if value != expected:
        newer = type(value) is int and value > expected
        advice = ": a newer version of adaptdel wrote it: install that version" if newer else ""
        raise ValueError(f"the format must be {expected}, got {value!r:.60}{advice}")
