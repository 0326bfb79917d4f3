"""The manifest of a run: the model, the data and the settings, and the checks of a manifest from a file."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from math import inf
from typing import Any

from adaptdel.certification.certificate import MOST_VOTES, check_classes
from adaptdel.classifiers.self_test import BATCHING, SelfTest
from adaptdel.core.bounds import BOUNDS
from adaptdel.core.cardinality import ROBERTA_VOCABULARY
from adaptdel.core.checks import (
    LARGEST_LENGTH,
    check_alpha,
    check_choice,
    check_int,
    check_names,
    check_probability,
    check_real,
    check_text,
)
from adaptdel.core.noise import noise_from_dict
from adaptdel.core.radius import check_noise
from adaptdel.core.threat import Threat
from adaptdel.engines.start import ENGINES, EngineSettings
from adaptdel.files import check_finite
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.inputs import Source
from adaptdel.text.units import check_unit, unit_from_dict

FORMAT = 1
NEEDED = ("finished", "classes", "noise", "ops", "bound", "threshold", "seed", "unit", "model_hash")
# Fields without which a run can be read, but not verified.
PLAN = ("alpha", "sampling", "votes")
OTHERS = ("limit", "vocab_size", "model", "data", "started", "sessions", "totals")
# The fields of objects inside the manifest.
MODEL = ("path", "base", "method", "training", "calibrated")
DATA = ("path", "text", "label", "ids", "encoding", "bytes", "sha256")


def check_manifest(values: Any) -> dict[str, Any]:
    """Return the manifest of a run if every known field has its type; ValueError names a field that has not."""
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
    """Raise unless classes, noise, threat and threshold are consistent."""
    classes = check_classes(values["classes"])
    if len(classes) < 2:
        raise ValueError("classes must hold at least 2 labels, got 1")
    check_noise(noise_from_dict(values["noise"]), Threat(values["ops"]))
    if values["threshold"] is not None and len(classes) != 2:
        raise ValueError("threshold must be null unless there are two classes")


def check_complete(manifest: Mapping[str, Any]) -> list[str]:
    """List the missing and the unknown fields of a manifest of `adaptdel certify`."""
    sessions = [(f"sessions.{n}", values) for n, values in enumerate(manifest.get("sessions", []))]
    wrong = []
    for what, values, required, optional in (
        ("the manifest", manifest, ("format", *NEEDED, *PLAN, *OTHERS), ("source", "part_rows")),
        ("model", manifest.get("model"), MODEL, ("self_test", "protects", "backend")),
        ("data", manifest.get("data"), DATA, ("files", "remote")),
        *((name, values, ("started", "versions"), ("workers", "engine", "rows", "done")) for name, values in sessions),
    ):
        try:
            check_names(what, values, required, optional)
        except ValueError as error:
            wrong.append(str(error))
    self_test = (manifest.get("model") or {}).get("self_test")
    if self_test is not None and self_test.get("model_hash") != manifest["model_hash"]:
        wrong.append("model.self_test is that of another model")
    if self_test is not None:
        try:
            check_names("model.self_test", self_test, [field.name for field in fields(SelfTest)])
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


def _paths(name: str, value: Any) -> None:
    """The path of the data, or a list of paths."""
    for path in value if isinstance(value, list) else [value]:
        check_text(name, path)


def _object(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {value!r}")


def _sessions(name: str, value: Any) -> None:
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list of objects, got {value!r}")
    for session in value:
        _fields(
            started=_time,
            workers=lambda name, count: check_int(name, count, least=1),
            engine=lambda name, engine: check_choice(name, engine, ENGINES),
            rows=lambda name, count: check_int(name, count, least=1),
            done=lambda name, count: check_int(name, count, least=0),
            versions=_object,
        )(name, session)


def _self_test(name: str, value: Any) -> None:
    _fields(
        batching=lambda name, level: check_choice(name, level, BATCHING),
        margin=lambda name, number: check_real(name, number, accepted="at least 0", least=0.0, most=inf),
        model_hash=check_text,
    )(name, value)


def _bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r}")


def _or_null(check: Callable[[str, Any], Any]) -> Callable[[str, Any], Any]:
    return lambda name, value: None if value is None else check(name, value)


def _fields(**checks: Callable[[str, Any], Any]) -> Callable[[str, Any], None]:
    """A check of the fields that an object has."""

    def check(name: str, value: Any) -> None:
        _object(name, value)
        for field, inner in checks.items():
            if field in value:
                inner(f"{name}.{field}", value[field])

    return check


def _source(name: str, value: Any) -> None:
    """The run that a recertified run comes from; ``planned`` is the alpha and ops that looks were planned for."""
    check_names(name, value, ("path", "alpha", "ops", "bound"), ("planned",))
    _fields(path=check_text, alpha=_alpha, ops=_ops, bound=_bound, planned=_or_null(_planned))(name, value)


def _planned(name: str, value: Any) -> None:
    check_names(name, value, ("alpha", "ops"))
    _fields(alpha=_alpha, ops=_ops)(name, value)


def _alpha(name: str, value: Any) -> None:
    check_alpha(value, name)


def _alpha_or_zero(name: str, value: Any) -> None:
    """A manifest that was not written by this library may state 0 for enumerated inputs."""
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
            self_test=_or_null(_self_test),
            backend=check_text,
            protects=_text_or_null,
        )
    ),
    "data": _or_null(
        _fields(
            path=_paths,
            text=check_text,
            label=check_text,
            ids=check_text,
            encoding=check_text,
            bytes=_or_null(check_int),
            sha256=_or_null(_sha256),
            remote=_sha256,
            files=lambda name, value: check_int(name, value, least=1),
        )
    ),
    "part_rows": lambda name, value: check_int(name, value, least=1),
    "sessions": _sessions,
    "totals": _or_null(_object),
    "source": _source,
}


def timestamp() -> str:
    """The current time in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# Fields that must be the same for a run to be resumed, and their names in messages.
_SAME = {
    "model_hash": "the base classifier",
    "noise": "the noise",
    "unit": "the unit",
    "classes": "the classes",
    "threshold": "the threshold",
    "ops": "ops",
    "bound": "the bound",
    "alpha": "alpha",
    "sampling": "the sampling",
    "votes": "the votes",
    "seed": "the seed",
}
_SAME_DATA = {
    "sha256": "the data",
    "text": "the text column",
    "label": "the label column",
    "ids": "the id column",
    "encoding": "the encoding",
}


def new_manifest(name: str, model: SmoothedClassifier, source: Source, limit: int | None) -> dict[str, Any]:
    """The manifest of a new run."""
    rule, base = model.rule(), model.base_classifier()
    return {
        "format": FORMAT,
        "model_hash": base.fingerprint(),
        "noise": rule.noise.to_dict(),
        "unit": check_unit(model.unit).to_dict(),
        "classes": list(base.classes_ or []),
        "threshold": rule.threshold,
        "ops": list(rule.ops),
        "bound": rule.bound,
        "alpha": model.alpha,
        "sampling": model.sampling,
        "votes": [model.n_select, model.n_estimate],
        "seed": model.seed,
        "limit": limit,
        "vocab_size": ROBERTA_VOCABULARY,
        "model": _model(name, model),
        "data": source.identity(),
        "started": timestamp(),
        "finished": None,
        "sessions": [],
        "totals": None,
    }


def session(engine: EngineSettings, rows: int) -> dict[str, Any]:
    """A session of a run: when it started, the engine, the workers, the rows of the data, the versions."""
    workers = 1 if engine.engine == "local" and engine.workers is None else engine.workers
    described: dict[str, Any] = {} if workers is None else {"workers": workers}
    if engine.engine != "local":
        described["engine"] = engine.engine
    return {"started": timestamp(), **described, "rows": rows, "versions": versions()}


def versions() -> dict[str, str]:
    """The versions of this library and of those it uses."""
    installed = {"python": platform.python_version()}
    names = [name for name in ("torch", "transformers", "onnxruntime") if name in sys.modules]
    for name in ("adaptdel", "numpy", "scipy", "pyarrow", *names):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The differences between two manifests because of which a run cannot be resumed."""
    same_settings = dict(_SAME)
    wrong = []
    backends = [(values.get("model") or {}).get("backend") for values in (old, new)]
    if None not in backends and backends[0] != backends[1]:
        wrong.append(_unlike("the backend", *backends) + f" (--backend {backends[0]} resumes it)")
        del same_settings["model_hash"]  # the backend is part of it
    wrong += [_unlike(name, old.get(key), new[key]) for key, name in same_settings.items() if old.get(key) != new[key]]
    old_data, new_data = old.get("data") or {}, new["data"]
    same = _SAME_DATA | ({"path": "the data", "remote": "the data"} if new_data["sha256"] is None else {})
    wrong += [
        _unlike(name, old_data.get(key), new_data.get(key))
        for key, name in same.items()
        if old_data.get(key) != new_data.get(key)
    ]
    if limit_of(new) < limit_of(old):
        wrong.append(_unlike("the limit", old.get("limit"), new["limit"]) + ", and can only be raised")
    return wrong


def limit_of(manifest: Mapping[str, Any]) -> float:
    """The largest row number that is certified."""
    limit = manifest.get("limit")
    return float("inf") if limit is None else float(limit)


def _unlike(name: str, old: Any, new: Any) -> str:
    earlier, now = (_shown(value) for value in (old, new))
    verb = "were" if name.endswith(("data", "classes", "votes")) or name == "ops" else "was"
    return f"{name} {verb} {earlier}, now {now}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        inner = [
            f"{key}={_shown(part)}" if key != "rate" else _shown(part) for key, part in value.items() if key != "kind"
        ]
        return " ".join([str(value.get("kind", "")), *inner]).strip()
    return str(value)


def _model(name: str, model: SmoothedClassifier) -> dict[str, Any]:
    self_test = getattr(model.base_classifier(), "self_test_", None)
    backend = model.base_classifier().backend
    training = getattr(model, "training_", None) or getattr(model.base_classifier(), "training_", None) or {}
    kept = {name: value for name, value in training.items() if name not in ("history", "losses")}
    protection = getattr(model, "protection_", None)
    protects = {} if protection is None else {"protects": str(protection["label"])}
    return {
        **protects,
        **({} if backend is None else {"backend": backend}),
        "path": name,
        "base": repr(model.base_classifier()),
        "method": training.get("method"),
        "training": kept or None,
        "calibrated": getattr(model, "calibration_", None) is not None,
        "self_test": None if self_test is None else self_test.to_dict(),
    }
