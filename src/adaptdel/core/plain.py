"""Dataclasses as plain values, as JSON holds them: written by `to_plain`, read by `from_plain`, which checks types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from adaptdel.core.checks import check_known_fields, check_type

NOT_STORED: dict[str, Any] = {"stored": False}  # the metadata of a field that is left out of files
READERS: dict[Any, Callable[[Any], Any]] = {}  # of types that are not read by their fields, such as a noise

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """A value as JSON holds it: lists, dictionaries, no types of NumPy, and a string for any other object."""
    if isinstance(value, (str, int, float, NoneType)):
        return value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in _stored(type(value))}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    return value.item() if hasattr(value, "item") else str(value)


def from_plain(cls: type[T], values: Any, what: str = "") -> T:
    """The dataclass that `to_plain` wrote: every field is there, has its type, and there is no other.

    A field with a default may be missing. ValueError names the field, as a part of ``what``.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{what or 'it'} must be an object, got {values!r:.60}")
    known, kinds, dot = _stored(cls), _kinds(cls), f"{what}." if what else ""
    check_known_fields(dict.fromkeys(values), [f.name for f in known])
    arguments = {}
    for each in known:
        if each.name in values:
            arguments[each.name] = _read(kinds[each.name], values[each.name], f"{dot}{each.name}")
        elif each.default is MISSING and each.default_factory is MISSING:
            raise ValueError(f"{dot}{each.name} is missing")
    return cls(**arguments)


_kinds: Callable[[Any], dict[str, Any]] = lru_cache(get_type_hints)


def _stored(cls: type[Any]) -> list[Any]:
    return [f for f in fields(cls) if f.init and f.metadata.get("stored", True)]


def _read(kind: Any, value: Any, name: str) -> Any:
    """A value of a type; ValueError if it is of another."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in parts:
            return None
        return _read(next(part for part in parts if part is not NoneType), value, name)
    if kind in READERS:
        return READERS[kind](value)
    if is_dataclass(kind):
        return from_plain(kind, value, name)  # type: ignore[arg-type]
    if origin is tuple:
        items = check_type(list, value, name)
        wanted = [parts[0]] * len(items) if parts[1:] == (...,) else list(parts)
        if len(items) != len(wanted):
            raise ValueError(f"{name} must hold {len(wanted)} values, got {len(items)}")
        return tuple(_read(part, item, name) for part, item in zip(wanted, items, strict=True))
    if origin is list:
        return [_read(parts[0], item, name) for item in check_type(list, value, name)]
    if origin in (dict, Mapping):
        return {key: _read(parts[1], item, f"{name}.{key:.60}") for key, item in check_type(dict, value, name).items()}
    return check_type(kind, value, name)
