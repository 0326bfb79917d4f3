"""Models in folders: JSON, safetensors and a model card. Loading executes no code from a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save as tensors_to_bytes

from adaptdel.classifiers.base import CLASSIFIERS, BaseClassifier
from adaptdel.core.checks import check_choice, check_fields, check_format, check_text
from adaptdel.core.noise import Noise, noise_from_dict
from adaptdel.core.registry import NotRegisteredError
from adaptdel.files import check_regular, read_json, read_tensors, replacing, replacing_folder, write_json, write_text
from adaptdel.models.card import calibration_text, model_card, training_text
from adaptdel.text.data import DATA
from adaptdel.text.units import check_unit, unit_from_dict

if TYPE_CHECKING:
    from adaptdel.models.estimator import TextEstimator

CONFIG, TRAINING, CALIBRATION = "adaptdel.json", "training.json", "calibration.json"
TEXTS = "texts.safetensors"  # hashes of the texts that the model was trained, calibrated and protected with, by use
EXAMPLES = "examples.json"  # texts to try, which `adaptdel serve` shows; loading does not need it
FORMAT = 2
MODELS = {
    "smoothed": "adaptdel.models.smoothed:SmoothedClassifier",
    "additive": "adaptdel.models.additive:AdditiveClassifier",
}
_FIELDS = dict.fromkeys(("kind", "version", "base", "fingerprint"), "a text")
_FIELDS |= {"classes": "a list", "unit": "an object", "options": "an object", "protection": "an object?"}
_OF_BASE = ("format", "version", "base", "fingerprint", "classes", "unit", "options", "self_test")
Extras = Callable[[Path], None]  # writes more files into the folder of a model


def save_model(model: TextEstimator, path: Path, extras: Extras = lambda folder: None) -> None:
    """Write a model atomically; a folder that holds something else is not changed."""
    base = model.base_classifier()
    if not base.kind:
        base.save(path / "base")  # raises a ValueError for a base classifier that cannot be saved
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / CONFIG).exists())):
        raise ValueError(f"path must be a new folder, an empty one or a saved model, got {str(path)!r}")
    if not base.fingerprint():
        raise ValueError(f"base must have a fingerprint to be saved: a part of the state of {base!r:.60} is not seen")
    self_test = getattr(base, "self_test_", None)
    settings = {
        "format": FORMAT,
        "version": version("adaptdel"),
        "base": base.kind,
        "fingerprint": base.fingerprint(),
        "classes": base.classes_,
        "unit": check_unit(model.unit).to_dict(),
        "options": base.options(),
        "self_test": None if self_test is None else self_test.to_dict(),
    }
    with replacing_folder(path) as partial:
        base.save(partial / "base")
        _write(model, partial, settings, extras)


def update_model(model: TextEstimator, path: Path, extras: Extras = lambda folder: None) -> None:
    """Store the settings and the records of a model in its folder; the base classifier there stays."""
    stored = _settings(path)
    _write(model, path, {name: stored[name] for name in _OF_BASE}, extras)


def update_copy(model: TextEstimator, path: Path, out: Path | None, extras: Extras = lambda folder: None) -> None:
    """Like `update_model`, in a copy of the folder that appears once it is complete; ``out=None`` for the folder."""
    if out is None:
        update_model(model, path, extras)
        return
    with replacing_folder(out) as partial:
        shutil.copytree(path, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
        update_model(model, partial, extras)


def _write(model: TextEstimator, folder: Path, of_base: Mapping[str, Any], extras: Extras) -> None:
    """Write all but the base classifier; the settings are replaced last and atomically."""
    protection = getattr(model, "protection_", None) if model.changed_plan() is None else None
    settings = {**of_base, "kind": model.kind, **model.to_settings(), "protection": protection}
    training, calibration, texts = (getattr(model, name, None) for name in ("training_", "calibration_", "texts_"))
    for name, record in ((TRAINING, training), (CALIBRATION, calibration)):
        if record is not None:
            write_json(folder / name, record)
    if texts is not None:
        with replacing(folder / TEXTS) as file:
            file.write(tensors_to_bytes(texts))
    extras(folder)
    write_text(folder / "README.md", model_card(settings, training, calibration))
    write_json(folder / CONFIG, settings)


def load_model(path: str | Path, running: Mapping[str, Any] | None = None) -> Any:
    """Read a model of any kind, and check the fingerprint of its base classifier; errors name the file.

    ``running`` says where and how a transformer runs: see `TextEstimator.load`.
    """
    path = Path(path)
    settings = _settings(path)
    config = path / CONFIG
    with _damaged(config):
        check_fields(settings, _FIELDS)
        unit = unit_from_dict(settings["unit"])
    check_regular(path / "base")
    base = _load_base(path / "base", settings, config, running or {})
    fingerprint = base.fingerprint_with(settings["options"])
    if not fingerprint or fingerprint != settings["fingerprint"]:
        raise ValueError(f"{path / 'base'}: the base classifier is not the one that was saved: its fingerprint differs")
    module, _, name = MODELS[settings["kind"]].partition(":")
    with _damaged(config):
        if settings["classes"] != base.classes_:
            raise ValueError("its classes are not those of the base classifier")
        model = getattr(import_module(module), name).from_settings(settings, base, unit)
        if (protection := settings.get("protection")) is not None:
            check_fields(protection, {"sentence": "a text", "plan": "an object"})
            if protection.get("label") not in settings["classes"]:
                raise ValueError(f"label must be one of the classes, got {protection.get('label')!r:.60}")
            model.protection_ = protection
    if (path / TRAINING).exists():
        model.training_ = _read(path / TRAINING, _check_training)
    if (path / CALIBRATION).exists():
        model.calibration_ = _read(path / CALIBRATION, calibration_text)
    if (path / TEXTS).exists():
        model.texts_ = read_tensors(path / TEXTS)
        with _damaged(path / TEXTS):
            if any(hashes.dtype != np.uint64 or hashes.ndim != 1 for hashes in model.texts_.values()):
                raise ValueError("must hold rows of 64-bit hashes")
    return model


def _settings(path: Path) -> dict[str, Any]:
    """The settings of a saved model, of which the format and the kind are checked."""
    config = path / CONFIG
    try:
        settings = _read(config)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"path must be a folder that save wrote, got {str(path)!r}"
            + (f" without {config.name}" if path.exists() else ", which does not exist")
            + ": give the folder of a model, such as adaptdel train writes"
        ) from None
    try:
        check_format(settings.get("format"), FORMAT)
    except ValueError as error:
        raise ValueError(f"{config}: {error}") from None
    with _damaged(config):
        check_choice("kind", settings.get("kind"), list(MODELS))
    return settings


def model_kind(path: Path) -> str:
    """The kind of a saved model, one of `MODELS`."""
    return str(_settings(path)["kind"])


def read_noise(path: Path) -> tuple[Noise, Any]:
    """The noise and the unit of a saved model, without its base classifier."""
    settings = _settings(path)
    with _damaged(path / CONFIG):
        check_fields(settings, {"noise": "an object", "unit": "an object"})
        return noise_from_dict(settings["noise"]), unit_from_dict(settings["unit"])


def class_count(path: Path) -> int:
    """The number of classes of the model in a folder, without reading its base classifier."""
    return len(_settings(path)["classes"])


def data_columns(model: TextEstimator | Path, text: str | None, label: str | None) -> dict[str, Any]:
    """The names of the columns of text and label: those given, else those of the model's training data, or the usual.

    ``model`` is a model or the folder of a saved one.
    """
    if isinstance(model, Path):
        training = _read(model / TRAINING, _check_training) if (model / TRAINING).exists() else None
    else:
        training = getattr(model, "training_", None)
    data = (training or {}).get("data") or {}
    names = {"text": DATA.text, "label": DATA.label} | (data.get("columns") or {})
    names |= {name: given for name, given in (("text", text), ("label", label)) if given is not None}
    return {name: check_text(f"the column {name}", names[name]) for name in ("text", "label")}


def check_free(out: Path, *, overwrite: bool) -> None:
    """Raise unless a model may be written to a folder: a new or empty one, or with ``overwrite`` another model's."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / CONFIG).exists():
        raise ValueError(f"{out}: holds something that is not a model: choose another folder for --out")
    if not overwrite:
        raise ValueError(f"{out}: holds another model: choose another folder for --out, or --overwrite")


def _read(path: Path, check: Callable[[dict[str, Any]], Any] | None = None) -> dict[str, Any]:
    """The values of a file of a saved model; a record is checked by what is written of it in the model card."""
    values = read_json(path, "a file of a saved model")
    if check is not None:
        with _damaged(path):
            check(values)
    return values


def _check_training(record: dict[str, Any]) -> None:
    training_text(record)
    check_fields(record["data"], {"columns": "an object?"})


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Add the name of the file to an error."""
    try:
        yield
    except NotRegisteredError as error:
        raise ValueError(f"{path}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = " ".join(str(error if isinstance(error, ValueError) else repr(error)).split())
        raise ValueError(f"{path}: damaged: {reason:.300}: save or copy the model anew") from None


def _load_base(folder: Path, settings: dict[str, Any], config: Path, running: Mapping[str, Any]) -> BaseClassifier:
    options = settings["options"]
    with _damaged(config):
        cls = CLASSIFIERS.get(settings["base"])
    if not folder.is_dir():
        raise ValueError(f"{folder}: missing from a saved model: save or copy the model anew")
    with _damaged(config):
        cls.check_options(options)
    cls.check_running(running)
    try:
        return cls.load(folder, **{**options, **running})
    except ImportError:
        raise
    except Exception as error:  # for damaged files, libraries raise errors of many types
        if isinstance(error, ValueError) and str(error).startswith((str(folder), *cls.running_options)):
            raise
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise ValueError(f"{folder}: the model cannot be read ({reason}): save or copy it anew") from None
