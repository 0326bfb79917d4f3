"""The manifest of a run: the model, the data and the settings, and the checks of a manifest from a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from adaptdel.certification.certificate import MOST_VOTES, check_classes
from adaptdel.classifiers.base import stable_repr
from adaptdel.core.bounds import check_bound
from adaptdel.core.checks import (
    check_alpha,
    check_choice,
    check_fields,
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
from adaptdel.runs.engine import EngineSettings, versions
from adaptdel.runs.inputs import Source
from adaptdel.settings import EXACT
from adaptdel.store import check_same_job
from adaptdel.text.data import DrawnRows
from adaptdel.text.units import check_unit, unit_from_dict

FORMAT = 3
RunModel = SmoothedClassifier | AdditiveClassifier
SAMPLED = ("noise", "bound", "sampling", "votes", "seed")  # what only certificates from votes depend on


def check_manifest(values: Any) -> dict[str, Any]:
    """Return the manifest of a run if every field is there and has its type; ValueError names a field that has not."""
    if not isinstance(values, Mapping):
        raise ValueError("it must hold an object")
    check_format(values.get("format"), FORMAT)
    _check("the manifest", values, _FIELDS, ("source", "method", "ngram"))
    check_choice("method", values.get("method", EXACT), (EXACT,))
    if values["model"] is not None:
        _check("model", values["model"], _MODEL)
        check_fields(values["model"]["training"] or {}, {"settings": "an object?", "data": "an object?"})
    check_data_and_sessions(values)
    if "source" in values:
        _check("source", values["source"], {"path": "a text", "planned": "an object", **_SETTING})
        _check("source.planned", values["source"]["planned"], _SETTING)
    classes = check_classes(values["classes"])
    if len(classes) < 2:
        raise ValueError("classes must hold at least 2 labels, got 1")
    if any(isinstance(label, (list, dict)) for label in classes):
        raise ValueError("classes must hold texts or numbers")
    if values["threshold"] is not None and len(classes) != 2:
        raise ValueError("threshold must be null unless there are two classes")
    if values["unit"] is not None:
        unit_from_dict(values["unit"])
    _check_settings(values)
    if values["finished"] is not None:
        _check_finished(values)
    return dict(values)


_SETTING = {"alpha": "a number", "ops": "a list", "bound": "a text?"}
_FIELDS = _SETTING | {
    "format": "an integer", "model_hash": "a text", "noise": "an object?", "unit": "an object?", "classes": "a list",
    "threshold": "a number?", "sampling": "a text?", "votes": "a list?", "seed": "an integer?", "limit": "an integer?",
    "model": "an object?", "data": "an object?", "started": "a text", "finished": "a text?", "sessions": "a list",
    "totals": "an object?", "rows": "an integer?", "seconds": "a number?", "table_sha256": "a text?",
    "method": "a text?", "source": "an object?", "ngram": "an integer?",
}  # fmt: skip
_MODEL = {
    "path": "a text", "base": "a text", "method": "a text?", "training": "an object?", "calibrated": "true or false",
    "self_test": "an object?", "dtype": "a text?", "protects": "a text?",
}  # fmt: skip
_DATA = {
    "text": "a text", "label": "a text", "encoding": "a text", "files": "an integer", "bytes": "an integer?",
    "sha256": "a text?", "remote": "a text?",
}  # fmt: skip
_SESSION = {
    "started": "a text", "engine": "a text", "workers": "an integer?", "rows": "an integer", "done": "an integer",
    "versions": "an object",
}  # fmt: skip


def check_data_and_sessions(values: Mapping[str, Any]) -> None:
    """Raise a ValueError unless the data and the sessions of a manifest, also of a run of attacks, are described."""
    if values["data"] is not None:
        _check("data", values["data"], _DATA, ("path", "sample"))
        stated = values["data"].get("path")  # of one file or of several
        for path in stated if isinstance(stated, list) else [stated]:
            check_text("data.path", path)
        if "sample" in values["data"]:
            DrawnRows(**check_names("data.sample", values["data"]["sample"], ("rows", "seed")))
    for session in values["sessions"]:
        _check("sessions", session, _SESSION)
        _check_time("sessions.started", session["started"])


def _check(what: str, values: Any, kinds: Mapping[str, str], optional: Collection[str] = ()) -> None:
    """Raise a ValueError unless an object has exactly these fields, with their types; some may be missing."""
    check_names(what, values, [name for name in kinds if name not in optional], optional)
    check_fields(values, kinds)


def _check_settings(values: Mapping[str, Any]) -> None:
    """A run of exact certificates has no noise, no votes and no error; any other run states all of them."""
    is_exact = "method" in values
    if (values.get("ngram") is not None) != is_exact:
        raise ValueError("ngram must be stated in a run of exact certificates, and in no other")
    for name in SAMPLED:
        if (values[name] is None) != is_exact:
            raise ValueError(f"{name} must be null in a run of exact certificates, and in no other")
    for setting in (values, *([values["source"], values["source"]["planned"]] if "source" in values else [])):
        if len(Threat(setting["ops"]).ops) != len(setting["ops"]):
            raise ValueError(f"ops must be a list that names each operation once, got {setting['ops']!r:.60}")
        if is_exact:
            if setting["alpha"] != 0:
                raise ValueError("alpha must be 0 in a run of exact certificates, and in no other")
        else:
            check_alpha(setting["alpha"])
            check_bound(setting["bound"])
    if values["limit"] is not None:
        check_int("limit", values["limit"], least=1)
    if is_exact:
        if values["threshold"] is not None:
            check_int("threshold", values["threshold"], least=-(2**53), most=2**53)
        return
    check_noise(noise_from_dict(values["noise"]), Threat(values["ops"]))
    check_choice("sampling", values["sampling"], ("adaptive", "fixed"))
    check_int("seed", values["seed"])
    if len(values["votes"]) != 2:
        raise ValueError(f"votes must be two integers, of selection and of estimation, got {values['votes']!r:.60}")
    for number in values["votes"]:
        check_int("votes", number, least=1, most=MOST_VOTES)
    if values["threshold"] is not None:
        check_probability("threshold", values["threshold"])


def _check_finished(values: Mapping[str, Any]) -> None:
    """A finished run states what is in its table; its last session has counted as many rows."""
    _check_time("finished", values["finished"])
    missing = [name for name in ("totals", "rows", "table_sha256") if values[name] is None]
    if missing or not values["sessions"]:
        raise ValueError(f"a finished run must state {', '.join(missing) or 'its sessions'}")
    if values["sessions"][-1]["rows"] != values["rows"]:
        raise ValueError(f"it counts {values['rows']} rows, and its last session {values['sessions'][-1]['rows']}")


def _check_time(name: str, value: str) -> None:
    try:
        zone = datetime.fromisoformat(value).tzinfo
    except ValueError:
        zone = None
    if zone is None:
        raise ValueError(f"{name} must be a time such as 2026-01-31T12:00:00+00:00, got {value!r:.60}")


def timestamp() -> str:
    """The current time in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_manifest(
    name: str, model: RunModel, source: Source, limit: int | None, progress: Any = False
) -> dict[str, Any]:
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
        "data": source.identity(progress),
        "started": timestamp(),
        "finished": None,
        "sessions": [],
        "totals": None,
        "rows": None,
        "seconds": None,
        "table_sha256": None,
    }


def session(engine: EngineSettings, rows: int, done: int = 0) -> dict[str, Any]:
    """A session of a run: when it started, the engine, the rows of the data, those that were done, the versions."""
    workers = 1 if engine.engine == "local" and engine.workers is None else engine.workers
    described = {"started": timestamp(), "engine": engine.engine, "workers": workers, "rows": rows, "done": done}
    return described | {"versions": versions()}


def check_resumable(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise a ValueError with the differences unless a run can be continued; its data are compared row by row."""
    if not new["model_hash"]:
        raise ValueError(
            f"{folder}: cannot be resumed: the base classifier has no fingerprint, so that it may be another "
            "one: choose another folder for --out"
        )
    if (new["limit"] or inf) < (old["limit"] or inf):
        raise ValueError(f"{folder}: the limit was {old['limit']}, now {new['limit']}, and can only be raised")
    check_same_job(folder, _job(old), _job(new), "choose another folder for --out")


def _job(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What a run can only be resumed with: what its rows depend on, beside the data."""
    model, data = manifest["model"] or {}, manifest["data"] or {}
    names = ("model_hash", "unit", "classes", "threshold", "ops", "alpha", *SAMPLED)
    return {
        "the precision (dtype)": model.get("dtype"),
        **{name: manifest[name] for name in names},
        **{f"the {name} column": data.get(name) for name in ("text", "label")},
        **{f"the {name}": data.get(name) for name in ("encoding", "sample")},
    }


def _model(name: str, model: RunModel) -> dict[str, Any]:
    self_test = getattr(model.base_classifier(), "self_test_", None)
    training = getattr(model, "training_", None) or getattr(model.base_classifier(), "training_", None) or {}
    kept = {name: value for name, value in training.items() if name not in ("history", "losses")}
    return {
        "path": name,
        "base": stable_repr(model.base_classifier()),
        "method": training.get("method"),
        "training": kept or None,
        "calibrated": getattr(model, "calibration_", None) is not None,
        "self_test": None if self_test is None else self_test.to_dict(),
        "dtype": model.base_classifier().dtype,
        "protects": protected_class(model),
    }


def protected_class(model: RunModel) -> str | None:
    """The class that the threshold of a model was proved to protect; None if it gives other answers by now."""
    protection = getattr(model, "protection_", None) if model.changed_plan() is None else None
    return None if protection is None else str(protection["label"])
