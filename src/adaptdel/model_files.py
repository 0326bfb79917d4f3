"""Smoothed classifiers in folders: JSON, safetensors, and a model card. Nothing that is read is executed."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adaptdel.classifiers.base import BaseClassifier
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.files import replacing_folder, write_json, write_text
from adaptdel.model_card import model_card
from adaptdel.noise import Noise, noise_from_dict
from adaptdel.units import check_unit, unit_from_dict

Model = Any  # a SmoothedClassifier, whose room is further down

CONFIG, TRAINING, CALIBRATION = "adaptdel.json", "training.json", "calibration.json"
FORMAT = 1
_PLAIN = ("alpha", "n_select", "n_estimate", "sampling", "bound", "seed", "threshold", "k", "copies")


def save_model(model: Model, path: Path, extras: Callable[[Path], None] | None = None) -> None:
    """Write a model whole or not at all; a folder that holds something else is not touched.

    ``extras`` may write more files into the folder before it takes its place.
    """
    base = model._ready()
    kind = _kind(base)
    self_test = getattr(base, "self_test_", None)
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / CONFIG).exists())):
        raise ValueError(f"path must be a new folder, an empty one or a saved model, got {str(path)!r}")
    settings = {
        "format": FORMAT,
        "version": version("adaptdel"),
        "base": kind,
        "fingerprint": base.fingerprint(),
        "classes": base.classes_,
        "noise": model._rule().noise.to_dict(),
        "ops": list(model._rule().ops),
        "unit": check_unit(model.unit).to_dict(),
        "options": base.options(),
        "self_test": None if self_test is None else self_test.to_dict(),
        **{name: _plain(getattr(model, name)) for name in _PLAIN},
    }
    training, calibration = (getattr(model, name, None) for name in ("training_", "calibration_"))
    with replacing_folder(path) as partial:
        base.save(partial / "base")
        write_json(partial / CONFIG, settings)
        if training is not None:
            write_json(partial / TRAINING, training)
        if calibration is not None:
            write_json(partial / CALIBRATION, calibration)
        write_text(partial / "README.md", model_card(settings, training, calibration))
        if extras is not None:
            extras(partial)


def load_model(cls: type[Model], path: Path) -> Model:
    """Read a model, and check that the base classifier is the one that was saved."""
    config = path / CONFIG
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
        if settings["format"] != FORMAT:
            raise ValueError(f"{config}: the format must be {FORMAT}, got {settings['format']!r}")
        noise = noise_from_dict(settings["noise"])
        base = _load_base(settings["base"], path / "base", settings.get("options") or {})
        model = cls(
            base,
            noise,
            ops=tuple(settings["ops"]),
            unit=unit_from_dict(settings["unit"]),
            **{name: settings[name] for name in _PLAIN},
        )
    except FileNotFoundError:
        raise ValueError(f"path must be a folder that save wrote, got {str(path)!r} without {config.name}") from None
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{config}: not a saved model: {error}") from None
    if base.fingerprint() != settings["fingerprint"]:
        raise ValueError(f"{path / 'base'}: the base classifier is not the one that was saved: its fingerprint differs")
    model.base_, model.noise_ = base, noise
    for name, file in (("training_", TRAINING), ("calibration_", CALIBRATION)):
        if (path / file).exists():
            setattr(model, name, _read(path / file))
    if base.classes_ is not None:
        import numpy as np

        model.classes_ = np.array(base.classes_)
    return model


def store_calibration(path: Path, calibration: dict[str, Any], noise: Noise) -> None:
    """Give a saved model the noise that calibration found, and keep the trace beside it.

    The configuration is replaced last and at once: until then the model is what it was.
    """
    settings = _read(path / CONFIG)
    settings["noise"] = noise.to_dict()
    training = _read(path / TRAINING) if (path / TRAINING).exists() else None
    if training is not None:
        training["calibrated"] = True
        write_json(path / TRAINING, training)
    write_json(path / CALIBRATION, calibration)
    write_text(path / "README.md", model_card(settings, training, calibration))
    write_json(path / CONFIG, settings)


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: not a file of a saved model: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: not a file of a saved model: must hold an object")
    return values


def _kind(base: BaseClassifier) -> str:
    if isinstance(base, LinearClassifier):
        return "linear"
    if type(base).__name__ == "TransformersClassifier":
        return "transformers"
    raise ValueError(
        f"base must be a LinearClassifier or a TransformersClassifier to be saved, got {base!r}: "
        "others could only be pickled, which is not safe to load"
    )


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _load_base(kind: str, folder: Path, options: dict[str, Any]) -> BaseClassifier:
    if kind == "linear":
        return LinearClassifier.load(folder)
    if kind == "transformers":
        from adaptdel.classifiers.transformers import TransformersClassifier

        return TransformersClassifier.load(folder, **options)
    raise ValueError(f"the base of a saved model must be linear or transformers, got {kind!r}")
