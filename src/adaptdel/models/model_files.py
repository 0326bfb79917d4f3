"""Models in folders: JSON, safetensors and a model card. Loading executes no code from a folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save as tensors_to_bytes

from adaptdel.certification.evidence import Plan
from adaptdel.classifiers.base import CLASSIFIERS
from adaptdel.core.checks import check_fields, check_format, check_names, check_text
from adaptdel.core.plain import from_plain, to_plain
from adaptdel.core.registry import NotRegisteredError, Registry
from adaptdel.files import check_regular, read_json, read_tensors, replacing, replacing_folder, write_json, write_text
from adaptdel.tables import markdown_text, percent
from adaptdel.text.data import DATA
from adaptdel.text.units import Unit, check_unit

if TYPE_CHECKING:
    from adaptdel.models.estimator import TextEstimator

CONFIG, TRAINING, CALIBRATION = "adaptdel.json", "training.json", "calibration.json"
TEXTS = "texts.safetensors"  # hashes of the texts that the model was trained, calibrated and protected with, by use
EXAMPLES = "examples.json"  # texts to try, which `adaptdel serve` shows; loading does not need it
FORMAT = 3
SHOWN_RECALLS = 10  # classes whose recall a line of the card gives
MODELS: Registry[type[TextEstimator]] = Registry(
    "model", lambda cls: None, {"smoothed": "adaptdel.models.smoothed", "additive": "adaptdel.models.additive"}
)
Extras = Callable[[Path], None]  # writes more files into the folder of a model


@dataclass(frozen=True)
class Settings:
    """The file `CONFIG` of a model's folder."""

    format: int
    version: str
    kind: str
    base: str  # the kind of the base classifier
    fingerprint: str  # its hash
    classes: list[Any]
    unit: Unit
    options: dict[str, Any]  # of the base classifier
    self_test: dict[str, Any] | None
    plan: Plan
    parameters: dict[str, Any]  # of the model
    protection: dict[str, Any] | None = None


def save_model(model: TextEstimator, path: Path, extras: Extras = lambda folder: None) -> None:
    """Write a model atomically; a folder that holds something else is not changed."""
    base = model.base_classifier()
    if not base.kind:
        base.save(path / "base")  # raises a ValueError for a base classifier that cannot be saved
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / CONFIG).exists())):
        raise ValueError(f"path must be a new folder, an empty one or a saved model, got {str(path)!r}")
    settings = _settings_of(model)
    settings.unit.to_dict()  # raises for one that cannot be saved
    with replacing_folder(path) as partial:
        base.save(partial / "base")
        if not settings.fingerprint:
            raise ValueError(f"base must have a fingerprint to be saved: state one in the attribute of {base!r:.60}")
        _write(model, partial, settings, extras)


def _settings_of(model: TextEstimator) -> Settings:
    base = model.base_classifier()
    self_test = getattr(base, "self_test_", None)
    return Settings(
        format=FORMAT,
        version=version("adaptdel"),
        kind=model.kind,
        base=base.kind,
        fingerprint=base.fingerprint(),
        classes=base.classes_ or [],
        unit=check_unit(model.unit),
        options=base.options(),
        self_test=None if self_test is None else self_test.to_dict(),
        plan=model.plan,
        parameters=model.parameters(),
        protection=model.records.protection if model.changed_plan() is None else None,
    )


def update_copy(model: TextEstimator, path: Path, out: Path | None, extras: Extras = lambda folder: None) -> None:
    """Store the plan and the records of a model in its folder, whose base classifier stays.

    Or, with ``out``, in a copy of the folder that appears once it is complete.
    """
    if out is not None:
        with replacing_folder(out) as partial:
            shutil.copytree(path, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
            update_copy(model, partial, None, extras)
        return
    _write(model, path, _settings_of(model), extras)


def _write(model: TextEstimator, folder: Path, settings: Settings, extras: Extras) -> None:
    """Write all but the base classifier; the settings are replaced last and atomically."""
    records = model.records
    for name, record in ((TRAINING, records.training), (CALIBRATION, records.calibration)):
        if record is not None:
            write_json(folder / name, record)
    if records.texts:
        with replacing(folder / TEXTS) as file:
            file.write(tensors_to_bytes(dict(records.texts)))
    extras(folder)
    with _damaged(folder):  # records of a folder that was changed by hand
        write_text(folder / "README.md", model_card(model, settings))
    write_json(folder / CONFIG, to_plain(settings))


def load_model(path: str | Path, running: Mapping[str, Any] | None = None) -> Any:
    """Read a model of any kind, and check the fingerprint of its base classifier; errors name the file.

    ``running`` says where and how a transformer runs: see `TextEstimator.load`.
    """
    path, running = Path(path), running or {}
    config, folder, settings = path / CONFIG, path / "base", read_settings(Path(path))
    check_regular(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: missing from a saved model: save or copy the model again")
    with _damaged(config):
        cls = CLASSIFIERS.get(settings.base)
        check_names("options", settings.options, cls.stored_options)
    cls.check_running(running)
    try:
        base = cls.load(folder, **{**settings.options, **running})
    except ImportError:
        raise
    except Exception as error:  # for damaged files, libraries raise errors of many types
        if isinstance(error, ValueError) and str(error).startswith((str(folder), *cls.running_options)):
            raise
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise ValueError(f"{folder}: the model cannot be read ({reason}): save or copy it again") from None
    fingerprint = base.fingerprint_with(settings.options)
    if not fingerprint or fingerprint != settings.fingerprint:
        raise ValueError(f"{folder}: the base classifier is not the one that was saved: its fingerprint differs")
    with _damaged(config):
        if settings.classes != base.classes_:
            raise ValueError("its classes are not those of the base classifier")
        model = MODELS.get(settings.kind).from_parts(base, settings.unit, settings.plan, settings.parameters)
        if (protection := settings.protection) is not None:
            check_fields(protection, {"sentence": "a text", "plan": "an object"})
            if protection.get("label") not in settings.classes:
                raise ValueError(f"label must be one of the classes, got {protection.get('label')!r:.60}")
    texts = read_tensors(path / TEXTS) if (path / TEXTS).exists() else {}
    with _damaged(path / TEXTS):
        if any(hashes.dtype != np.uint64 or hashes.ndim != 1 for hashes in texts.values()):
            raise ValueError("must hold rows of 64-bit hashes")
    training, calibration = (_record(path / name) for name in (TRAINING, CALIBRATION))
    model.record(training=training, calibration=calibration, protection=protection, texts=texts)
    return model


_RECORDS = {  # what later commands rely on
    TRAINING: {"method": "a text", "data": "an object", "settings": "an object", "held_out": "an object?"},
    CALIBRATION: {"rate": "an object", "settings": "an object", "warnings": "a list"},
}


def _record(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    record = read_json(path, "a file of a saved model")
    with _damaged(path):
        check_fields(record, _RECORDS[path.name])
    return record


def read_settings(path: Path) -> Settings:
    """The settings of a saved model, checked; the base classifier is not read."""
    config = path / CONFIG
    try:
        values = read_json(config, "a file of a saved model")
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"path must be a folder that save wrote, got {str(path)!r}"
            + (f" without {config.name}" if path.exists() else ", which does not exist")
            + ": give the folder of a model, such as adaptdel train writes"
        ) from None
    try:
        check_format(values.get("format"), FORMAT)
    except ValueError as error:
        raise ValueError(f"{config}: {error}") from None
    with _damaged(config):
        return from_plain(Settings, values)


def data_columns(model: TextEstimator | Path, text: str | None, label: str | None) -> dict[str, Any]:
    """The names of the columns of text and label: those given, else those of the model's training data, or the usual.

    ``model`` is a model or the folder of a saved one.
    """
    training = _record(model / TRAINING) if isinstance(model, Path) else model.records.training
    with _damaged(model / TRAINING if isinstance(model, Path) else Path(TRAINING)):
        names = {"text": DATA.text, "label": DATA.label} | (((training or {}).get("data") or {}).get("columns") or {})
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


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Add the name of the file to an error."""
    try:
        yield
    except NotRegisteredError as error:
        raise ValueError(f"{path}: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = " ".join(str(error if isinstance(error, ValueError) else repr(error)).split())
        raise ValueError(f"{path}: damaged: {reason:.300}: save or copy the model again") from None


# The model card

_USE = """
## Use

```sh
adaptdel certify MODEL --data test.csv --out RUN
```

```python
from adaptdel.models import load

certificate = load("this folder").certify(["a text"])[0]
print(certificate.label, certificate.radius)  # no attacker with up to this many edits can change the label; -1: none
```

A certificate holds {}. It says that the answer stays the same, not that it is right.
"""


OPTIMISTIC = (
    "The rates were searched for on labelled data; the trace is in `calibration.json`. Its figures are those of "
    "the data that the rates were chosen on, and may be optimistic: certify other data."
)


def model_card(model: TextEstimator, settings: Settings) -> str:
    """The card of a model, from its settings and records."""
    from adaptdel.measures.class_measures import SHOWN_CLASSES, class_table

    training, calibration = model.records.training, model.records.calibration
    trained = "" if training is None else f", trained with {training['method']}"
    parts = [
        "---\nlibrary_name: adaptdel\ntags: [certified-robustness]\n---",
        f"# {settings.kind.capitalize()} classifier{trained}\n",
        f"- Classes: {', '.join(markdown_text(str(label)) for label in settings.classes)}",
        f"- Units: `{settings.unit.kind}`",
        *(f"- {line}" for line in settings.plan.describe()),
    ]
    if settings.plan.decision_threshold is not None:
        name = markdown_text(str(settings.classes[1]))
        threshold = f"- Decision threshold for **{name}**: {settings.plan.decision_threshold:.4g}"
        proved = (settings.protection or {}).get("sentence", "").replace("<", "&lt;")
        parts.append(threshold + (f"; {proved}" if proved else ""))
    parts += [
        f"- Base classifier: {settings.base}, fingerprint `{settings.fingerprint[:16]}`",
        f"- Written by adaptdel {settings.version}",
    ]
    if training is not None:
        parts.append(training_text(training).replace("<", "&lt;"))
    if calibration is not None:
        lines = ["\n## Calibration\n", OPTIMISTIC, *(f"- **Warning**: {each}" for each in calibration["warnings"])]
        if rows := calibration.get("classes"):
            lines += ["", "By class, under the chosen rate:", "", class_table(rows[:SHOWN_CLASSES]).to_markdown()]
        parts.append("\n".join(lines).replace("<", "&lt;"))
    alpha = settings.plan.alpha
    holds = f"with probability {1 - alpha:g} over the noise that is drawn for the input" if alpha else "always"
    return "\n".join([*parts, *model.card(), _USE.format(holds)])


def held_out_text(record: Mapping[str, Any]) -> str:
    """The figures by class on held-out examples, from the record of a training; "" if they were not measured."""
    held = record["held_out"]
    if held is None:
        if record["history"] is None or record.get("calibrated") or record["data"]["held_out"]:
            return ""
        return "no held-out examples: how accurate the model is on new texts is unknown"
    chose = "" if record["settings"].get("model") == "linear" else ", which chose the weights that are kept"
    recalls = ", ".join(f"{label} {percent(share)}" for label, share in list(held["recall"].items())[:SHOWN_RECALLS])
    absent = ", ".join(held["absent"][:SHOWN_RECALLS])
    return (
        f"{held['inputs']} held-out examples{chose}, by {held['votes']} votes without a decision threshold: clean "
        f"accuracy {percent(held['accuracy'], 2)}, balanced accuracy {percent(held['balanced_accuracy'], 2)}; recall "
        f"by class: {recalls}" + (f"; unknown, since none is held out: {absent}" if absent else "")
    )


def training_text(record: Mapping[str, Any]) -> str:
    """What the card says about the training."""
    from adaptdel.certification.votes import noise_text
    from adaptdel.core.noise import noise_from_dict

    data, versions = record["data"], record["versions"]
    lines = [
        "\n## Training\n",
        f"- Method: {record['method']}" + (f" at {record['rate']:.4g}" if record["rate"] is not None else ""),
        f"- Data: {data['rows']} examples, {data['mean_length']:.4g} tokens on average; {data['held_out']} held out; "
        f"SHA-256 `{data['digest'][:16]}`",
        f"- Settings: {', '.join(f'{name} {value}' for name, value in record['settings'].items() if value != '')}",
        f"- Time: {record['seconds']:.4g} s; {', '.join(f'{name} {value}' for name, value in versions.items())}",
    ]
    if record["noise"] is not None:
        lines.insert(2, f"- Noise while training: {noise_text(noise_from_dict(record['noise']))}")
    lines += [f"- Measured: {text}" for text in [held_out_text(record)] if text]
    lines += [f"- **Warning**: {sentence}" for sentence in record["warnings"]]
    if record.get("calibrated") is False:
        lines.append("- **Not calibrated yet**: `adaptdel calibrate MODEL --data FILE` finds the rates of AdaptDel+.")
    return "\n".join(lines)
