"""What a run is: the model, the data and the settings, by which it is known again."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from adaptdel.cardinality import ROBERTA_VOCABULARY
from adaptdel.evaluation.inputs import Source
from adaptdel.evaluation.manifest_fields import FORMAT
from adaptdel.evaluation.runs import timestamp
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.units import check_unit

# What must be the same for a run to be gone on with, and how it is called.
_SAME = {
    "model_hash": "the base classifier",
    "noise": "the noise",
    "unit": "the unit",
    "classes": "the classes",
    "threshold": "the threshold",
    "k": "k",
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


def new_manifest(folder: Path, model: SmoothedClassifier, source: Source, limit: int | None) -> dict[str, Any]:
    """The manifest of a run that begins."""
    rule, base = model._rule(), model._ready()
    if base.classes_ is None:
        raise ValueError(f"{folder}: a run needs a model whose classes are known")
    return {
        "format": FORMAT,
        "model_hash": base.fingerprint(),
        "noise": rule.noise.to_dict(),
        "unit": check_unit(model.unit).to_dict(),
        "classes": list(base.classes_),
        "threshold": rule.threshold,
        "k": rule.k,
        "ops": list(rule.ops),
        "bound": rule.bound,
        "alpha": model.alpha,
        "sampling": model.sampling,
        "votes": [model.n_select, model.n_estimate],
        "seed": model.seed,
        "limit": limit,
        "vocab_size": ROBERTA_VOCABULARY,
        "model": _model(folder, model),
        "data": source.identity(),
        "started": timestamp(),
        "finished": None,
        "sessions": [],
        "totals": None,
    }


def session(workers: int) -> dict[str, Any]:
    """One sitting of a run: when, with what, by how many."""
    return {"started": timestamp(), "workers": workers, "versions": versions()}


def versions() -> dict[str, str]:
    """Of this library and of those that take part."""
    found = {"python": platform.python_version()}
    names = [name for name in ("torch", "transformers", "onnxruntime") if name in sys.modules]
    for name in ("adaptdel", "numpy", "scipy", "pyarrow", *names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What keeps a run from being gone on with, in words."""
    wrong = [_unlike(name, old.get(key), new[key]) for key, name in _SAME.items() if old.get(key) != new[key]]
    before, now = old.get("data") or {}, new["data"]
    same = _SAME_DATA | ({"path": "the data"} if now["sha256"] is None else {})
    wrong += [_unlike(name, before.get(key), now[key]) for key, name in same.items() if before.get(key) != now[key]]
    if limit_of(new) < limit_of(old):
        wrong.append(_unlike("the limit", old.get("limit"), new["limit"]) + ", and can only be raised")
    return wrong


def limit_of(manifest: Mapping[str, Any]) -> float:
    """How many rows are asked for at most."""
    limit = manifest.get("limit")
    return float("inf") if limit is None else float(limit)


def _unlike(name: str, old: Any, new: Any) -> str:
    before, now = (_shown(value) for value in (old, new))
    verb = "were" if name.endswith(("data", "classes", "votes")) or name == "ops" else "was"
    return f"{name} {verb} {before}, now {now}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, Mapping):
        inner = [
            f"{key}={_shown(one)}" if key != "rate" else _shown(one) for key, one in value.items() if key != "kind"
        ]
        return " ".join([str(value.get("kind", "")), *inner]).strip()
    return str(value)


def _model(folder: Path, model: SmoothedClassifier) -> dict[str, Any]:
    self_test = getattr(model._ready(), "self_test_", None)
    training = getattr(model, "training_", None) or getattr(model._ready(), "training_", None) or {}
    kept = {name: value for name, value in training.items() if name not in ("history", "losses")}
    return {
        "path": str(folder),
        "base": repr(model._ready()),
        "method": training.get("method"),
        "training": kept or None,
        "calibrated": getattr(model, "calibration_", None) is not None,
        "self_test": None if self_test is None else self_test.to_dict(),
    }
