"""The manifest of a run: the model, the data and the settings, and the checks of a manifest from a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from adaptdel.certification.certificate import MOST_VOTES, check_classes
from adaptdel.core.bounds import check_bound
from adaptdel.core.checks import (
    check_alpha,
    check_choice,
    check_format,
    check_int,
    check_names,
    check_probability,
    check_text,
)
from adaptdel.core.noise import noise_from_dict
from adaptdel.core.radius import check_noise
from adaptdel.core.threat import Threat
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.engine import ENGINES, EngineSettings, versions
from adaptdel.runs.inputs import Source
from adaptdel.settings import EXACT
from adaptdel.store import check_same_job
from adaptdel.text.units import check_unit, unit_from_dict

FORMAT = 2
RunModel = SmoothedClassifier | AdditiveClassifier
OPTIONAL = ("source", "part_rows", "method")
SAMPLED = ("noise", "bound", "sampling", "votes", "seed")  # what only certificates from votes depend on


def check_manifest(values: Any) -> dict[str, Any]:
    """Return the manifest of a run if every field is there and has its type; ValueError names a field that has not."""
    if not isinstance(values, Mapping):
        raise ValueError("it must hold an object")
    check_format(values.get("format"), FORMAT)
    _object_of(_FIELDS, OPTIONAL)("the manifest", values)
    classes = check_classes(values["classes"])
    if len(classes) < 2:
        raise ValueError("classes must hold at least 2 labels, got 1")
    if any(isinstance(label, (list, dict)) for label in classes):
        raise ValueError("classes must hold texts or numbers")
    _check_method(values)
    if values["threshold"] is not None and len(classes) != 2:
        raise ValueError("threshold must be null unless there are two classes")
    if values["finished"] is not None:
        missing = [name for name in ("totals", "rows") if values[name] is None]
        if missing or not values["sessions"] or not values["files"]:
            raise ValueError(f"a finished run must state {', '.join(missing) or 'sessions and files'}")
        if values["sessions"][-1]["rows"] != values["rows"]:
            raise ValueError(f"it counts {values['rows']} rows, and its last session {values['sessions'][-1]['rows']}")
    return dict(values)


def _check_method(values: Mapping[str, Any]) -> None:
    """A run of exact certificates has no noise, no votes and no error; any other run states all of them."""
    is_exact = "method" in values
    for name in SAMPLED:
        if (values[name] is None) != is_exact:
            raise ValueError(f"{name} must be null in a run of exact certificates, and in no other")
    if (values["alpha"] == 0) != is_exact:
        raise ValueError("alpha must be 0 in a run of exact certificates, and in no other")
    if is_exact:
        if values["threshold"] is not None:
            check_int("threshold", values["threshold"], least=-(2**53), most=2**53)
        return
    check_noise(noise_from_dict(values["noise"]), Threat(values["ops"]))
    if values["threshold"] is not None:
        check_probability("threshold", values["threshold"])


Check = Callable[[str, Any], Any]


def _ops(name: str, value: Any) -> None:
    if not isinstance(value, list) or len(Threat(value).ops) != len(value):
        raise ValueError(f"{name} must be a list that names each operation once, got {value!r:.60}")


def _votes(name: str, value: Any) -> None:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{name} must be two integers, of selection and of estimation, got {value!r:.60}")
    for number in value:
        check_int(name, number, least=1, most=MOST_VOTES)


def _time(name: str, value: Any) -> None:
    try:
        zone = datetime.fromisoformat(check_text(name, value)).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise ValueError(f"{name} must be a time such as 2026-01-31T12:00:00+00:00, got {value!r:.60}")


def _sha256(name: str, value: Any) -> None:
    if not re.fullmatch("[0-9a-f]{64}", check_text(name, value)):
        raise ValueError(f"{name} must be a SHA-256 in 64 hexadecimal digits, got {value!r:.60}")


def _path(name: str, value: Any) -> None:
    """The path of the data, or a list of paths."""
    for path in value if isinstance(value, list) else [value]:
        check_text(name, path)


def _object(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {value!r:.60}")


def _bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r:.60}")


def _alpha(name: str, value: Any) -> None:
    """A run of exact certificates states 0."""
    if value != 0 or isinstance(value, bool):
        check_alpha(value, name)


def _integer(least: int) -> Check:
    return lambda name, value: check_int(name, value, least=least, most=2**63 - 1)


def _choice(*choices: str) -> Check:
    return lambda name, value: check_choice(name, value, choices)


def _or_null(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _list_of(check: Check) -> Check:
    def check_list(name: str, value: Any) -> None:
        if not isinstance(value, list):
            raise ValueError(f"{name} must be a list, got {value!r:.60}")
        for inner in value:
            check(name, inner)

    return check_list


def _files(name: str, value: Any) -> None:
    """The SHA-256 of every table by its name."""
    _object(name, value)
    for path, digest in value.items():
        _sha256(f"{name}.{path:.60}", digest)


def _object_of(checks: Mapping[str, Check], optional: Collection[str] = ()) -> Check:
    """A check of an object with exactly these fields; those in ``optional`` may be missing."""

    def check(name: str, value: Any) -> None:
        check_names(name, value, [field for field in checks if field not in optional], optional)
        for field, inner in checks.items():
            if field in value:
                inner(field if name == "the manifest" else f"{name}.{field}", value[field])

    return check


_SETTING: dict[str, Check] = {"alpha": _alpha, "ops": _ops, "bound": _or_null(lambda name, value: check_bound(value))}
_FIELDS: dict[str, Check] = {
    "format": _integer(0),
    "model_hash": check_text,
    "noise": _or_null(lambda name, value: noise_from_dict(value)),
    "unit": _or_null(lambda name, value: unit_from_dict(value)),
    "classes": lambda name, value: check_classes(value),
    "threshold": lambda name, value: None,  # see `_check_method`
    **_SETTING,
    "sampling": _or_null(_choice("adaptive", "fixed")),
    "votes": _or_null(_votes),
    "seed": _or_null(_integer(0)),
    "limit": _or_null(_integer(1)),
    "model": _or_null(
        _object_of(
            {
                "path": check_text,
                "base": check_text,
                "method": _or_null(check_text),
                "training": _or_null(_object),
                "calibrated": _bool,
                "self_test": _or_null(_object),
                "dtype": _or_null(check_text),
                "protects": _or_null(check_text),
            }
        )
    ),
    "data": _or_null(
        _object_of(
            {
                "path": _path,
                "text": check_text,
                "label": check_text,
                "encoding": check_text,
                "files": _integer(1),
                "bytes": _or_null(_integer(0)),
                "sha256": _or_null(_sha256),
                "remote": _or_null(_sha256),
                "sample": _object_of({"rows": _integer(1), "seed": _integer(0)}),
            },
            optional=("sample",),
        )
    ),
    "started": _time,
    "finished": _or_null(_time),
    "sessions": _list_of(
        _object_of(
            {
                "started": _time,
                "engine": _choice(*ENGINES),
                "workers": _or_null(_integer(1)),
                "rows": _integer(0),
                "done": _integer(0),
                "versions": _object,
            }
        )
    ),
    "totals": _or_null(_object),
    "rows": _or_null(_integer(0)),
    "files": _files,
    "part_rows": _integer(1),
    "method": _choice(EXACT),
    # The run that a recertified run comes from, and what its looks were planned for.
    "source": _object_of({"path": check_text, **_SETTING, "planned": _object_of(_SETTING)}),
}


def timestamp() -> str:
    """The current time in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_manifest(name: str, model: RunModel, source: Source, limit: int | None) -> dict[str, Any]:
    """The manifest of a new run."""
    base = model.base_classifier()
    return {
        "format": FORMAT,
        "model_hash": base.fingerprint(),
        "unit": check_unit(model.unit).to_dict(),
        "classes": list(base.classes_ or []),
        **model.run_settings(),
        "limit": limit,
        "model": _model(name, model),
        "data": source.identity(),
        "started": timestamp(),
        "finished": None,
        "sessions": [],
        "totals": None,
        "rows": None,
        "files": {},
    }


def session(engine: EngineSettings, rows: int, done: int = 0) -> dict[str, Any]:
    """A session of a run: when it started, the engine, the rows of the data, those that were done, the versions."""
    workers = 1 if engine.engine == "local" and engine.workers is None else engine.workers
    described = {"started": timestamp(), "engine": engine.engine, "workers": workers, "rows": rows, "done": done}
    return described | {"versions": versions()}


# What a run can only be resumed with, and what else the records depend on.
_JOB = (
    "model_hash", "noise", "unit", "classes", "threshold", "ops", "bound", "alpha", "sampling", "votes", "seed",
)  # fmt: skip


def check_resumable(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise a ValueError with the differences unless a run can be continued; its data are compared row by row."""
    if not new["model_hash"]:
        raise ValueError(
            f"{folder}: cannot be resumed: the base classifier has no fingerprint, so that it may be another "
            "one: choose another folder for --out"
        )
    dtypes = [(values["model"] or {}).get("dtype") for values in (old, new)]
    if None not in dtypes and dtypes[0] != dtypes[1]:  # which the fingerprint includes
        raise ValueError(
            f"{folder}: belongs to another job: the precision was {dtypes[0]}, now {dtypes[1]}: resume it with "
            f"--dtype {dtypes[0]}, or choose another --out"
        )
    if (new["limit"] or inf) < (old["limit"] or inf):
        raise ValueError(f"{folder}: the limit was {old['limit']}, now {new['limit']}, and can only be raised")
    check_same_job(folder, _job(old), _job(new), "choose another folder for --out")


def _job(manifest: Mapping[str, Any]) -> dict[str, Any]:
    data = manifest["data"] or {}
    columns = {f"the {name} column": data.get(name) for name in ("text", "label")}
    return (
        {name: manifest[name] for name in _JOB}
        | columns
        | {
            "the encoding": data.get("encoding"),
            "the sample": data.get("sample"),
        }
    )


def _model(name: str, model: RunModel) -> dict[str, Any]:
    self_test = getattr(model.base_classifier(), "self_test_", None)
    training = getattr(model, "training_", None) or getattr(model.base_classifier(), "training_", None) or {}
    kept = {name: value for name, value in training.items() if name not in ("history", "losses")}
    protection = getattr(model, "protection_", None)
    return {
        "path": name,
        "base": repr(model.base_classifier()),
        "method": training.get("method"),
        "training": kept or None,
        "calibrated": getattr(model, "calibration_", None) is not None,
        "self_test": None if self_test is None else self_test.to_dict(),
        "dtype": model.base_classifier().dtype,
        "protects": None if protection is None else str(protection["label"]),
    }
