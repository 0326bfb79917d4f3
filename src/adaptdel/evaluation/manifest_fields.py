"""What the fields of a run's manifest must be: checked whenever one is read, so that nothing else has to ask."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from adaptdel.bounds import BOUNDS
from adaptdel.certificate import MOST_VOTES, check_classes
from adaptdel.checks import (
    LARGEST_LENGTH,
    check_alpha,
    check_choice,
    check_int,
    check_names,
    check_probability,
    check_text,
)
from adaptdel.noise import noise_from_dict
from adaptdel.radius import check_noise
from adaptdel.strict_json import check_finite
from adaptdel.threat import Threat
from adaptdel.units import unit_from_dict

FORMAT = 1
NEEDED = ("finished", "classes", "noise", "ops", "bound", "threshold", "k", "seed", "unit", "model_hash")
# Without these a run can be read, but not verified.
PLAN = ("alpha", "sampling", "votes")
OTHERS = ("limit", "vocab_size", "model", "data", "started", "sessions", "totals")
# What objects inside the manifest hold.
MODEL = ("path", "base", "method", "training", "calibrated")
DATA = ("path", "text", "label", "ids", "encoding", "bytes", "sha256")


def check_manifest(values: Any) -> dict[str, Any]:
    """Return the manifest of a run if each field that is known is of its kind; ValueError names the one that is not."""
    if not isinstance(values, Mapping):
        raise ValueError("it must hold an object")
    if "format" not in values:
        raise ValueError("it lacks format")
    if check_int("format", values["format"]) != FORMAT:
        raise ValueError(f"the format must be {FORMAT}, got {values['format']!r}")
    missing = [name for name in NEEDED if name not in values]
    if missing:
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    check_finite(values, skip=("model.training",))
    for name, check in _CHECKS.items():
        if name in values:
            check(name, values[name])
    _check_setting(values)
    return dict(values)


def _check_setting(values: Mapping[str, Any]) -> None:
    """Raise unless classes, noise, attacker, threshold and k go together."""
    classes = check_classes(values["classes"])
    if len(classes) < 2:
        raise ValueError("classes must hold at least 2 labels, got 1")
    check_noise(noise_from_dict(values["noise"]), Threat(values["ops"]))
    check_int("k", values["k"], least=1, most=len(classes) - 1)
    if values["threshold"] is not None and len(classes) != 2:
        raise ValueError("threshold must be null unless there are two classes")


def check_complete(manifest: Mapping[str, Any]) -> list[str]:
    """What is missing from a manifest of `adaptdel certify`, or is in it without being known."""
    sessions = [(f"sessions.{n}", values) for n, values in enumerate(manifest.get("sessions", []))]
    wrong = []
    for what, values, required, optional in (
        ("the manifest", manifest, ("format", *NEEDED, *PLAN, *OTHERS), ("source",)),
        ("model", manifest.get("model"), MODEL, ("self_test",)),
        ("data", manifest.get("data"), DATA, ()),
        *((name, values, ("started", "versions"), ("workers",)) for name, values in sessions),
    ):
        try:
            check_names(what, values, required, optional)
        except ValueError as error:
            wrong.append(str(error))
    return wrong


def _ops(name: str, value: Any) -> None:
    if not isinstance(value, list) or len(Threat(value).ops) != len(value):
        raise ValueError(f"{name} must be a list that names each operation once, got {value!r}")


def _votes(name: str, value: Any) -> None:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{name} must be two whole numbers, of selection and of estimation, got {value!r}")
    for number in value:
        check_int(name, number, least=1, most=MOST_VOTES)


def _time(name: str, value: Any) -> None:
    try:
        datetime.fromisoformat(check_text(name, value))
    except ValueError:
        raise ValueError(f"{name} must be a time such as 2026-01-31T12:00:00+00:00, got {value!r}") from None


def _sha256(name: str, value: Any) -> None:
    if not re.fullmatch("[0-9a-f]{64}", check_text(name, value)):
        raise ValueError(f"{name} must be a SHA-256 in 64 hexadecimal digits, got {value!r}")


def _object(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {value!r}")


def _sessions(name: str, value: Any) -> None:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list of objects, got {value!r}")
    for session in value:
        _fields(started=_time, workers=lambda name, count: check_int(name, count, least=1), versions=_object)(
            name, session
        )


def _bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")


def _or_null(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


def _fields(**checks: Callable[[str, Any], Any]) -> Callable[[str, Any], None]:
    """A check of an object's fields, where they are there."""

    def check(name: str, value: Any) -> None:
        _object(name, value)
        for field, inner in checks.items():
            if field in value:
                inner(f"{name}.{field}", value[field])

    return check


def _source(name: str, value: Any) -> None:
    """Where a recertified run came from; ``planned`` is for which alpha and ops the looks were planned."""
    check_names(name, value, ("path", "alpha", "ops", "bound"), ("planned",))
    _fields(path=check_text, alpha=_alpha, ops=_ops, bound=_bound, planned=_or_null(_planned))(name, value)


def _planned(name: str, value: Any) -> None:
    check_names(name, value, ("alpha", "ops"))
    _fields(alpha=_alpha, ops=_ops)(name, value)


def _alpha(name: str, value: Any) -> None:
    check_alpha(value, name)


def _alpha_or_zero(name: str, value: Any) -> None:
    """A run of enumerated inputs that was written by hand may say 0."""
    if value != 0 or isinstance(value, bool):
        check_alpha(value, name)


def _bound(name: str, value: Any) -> None:
    check_choice(name, value, BOUNDS)


_text_or_null = _or_null(check_text)

_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "finished": _or_null(_time),
    "started": _time,
    "unit": _or_null(lambda name, value: unit_from_dict(value)),
    "model_hash": check_text,
    "noise": lambda name, value: noise_from_dict(value),
    "ops": _ops,
    "bound": _bound,
    "threshold": _or_null(check_probability),
    "seed": lambda name, value: check_int(name, value, most=2**63 - 1),
    "alpha": _alpha_or_zero,
    "sampling": lambda name, value: check_choice(name, value, ("adaptive", "fixed")),
    "votes": _votes,
    "limit": _or_null(lambda name, value: check_int(name, value, least=1)),
    "vocab_size": lambda name, value: check_int(name, value, least=1, most=LARGEST_LENGTH),
    "model": _or_null(
        _fields(
            path=check_text,
            base=check_text,
            method=_text_or_null,
            training=_or_null(_object),
            calibrated=_bool,
            self_test=_or_null(_object),
        )
    ),
    "data": _or_null(
        _fields(
            path=check_text,
            text=check_text,
            label=check_text,
            ids=check_text,
            encoding=check_text,
            bytes=_or_null(check_int),
            sha256=_or_null(_sha256),
        )
    ),
    "sessions": _sessions,
    "totals": _or_null(_object),
    "source": _source,
}
