"""Save and load smoothed classifiers: folders with JSON, safetensors and a model card. Loading executes no code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.certification.certificate import MOST_VOTES
from adaptdel.certification.sampling import SamplingPlan
from adaptdel.classifiers.base import BaseClassifier, classifier_class
from adaptdel.core.checks import check_choice, check_fields, check_int, check_probability, check_text
from adaptdel.core.noise import Noise, noise_from_dict
from adaptdel.files import read_json, replacing_folder, write_json, write_text
from adaptdel.hyperparameters import BACKEND_CHOICES, BACKENDS
from adaptdel.measures.class_measures import check_class_rows
from adaptdel.measures.summary import SHOWN_CLASSES, class_table
from adaptdel.tables import percent, text_table
from adaptdel.text.data import DATA
from adaptdel.text.units import check_unit, unit_from_dict

LONGEST_NOISE = 200  # characters of a noise that a model card shows as code
SHOWN_RECALLS = 10  # classes whose recall a line gives
SHOWN = 12  # rows of the training history in a model card


def model_card(
    settings: Mapping[str, Any], training: Mapping[str, Any] | None, calibration: Mapping[str, Any] | None
) -> str:
    """The README of a saved model, written from the other files of its folder."""
    classes = ", ".join(map(str, settings.get("classes") or []))
    title = "A smoothed classifier" if training is None else f"A smoothed classifier, trained with {training['method']}"
    parts = [
        "---\nlibrary_name: adaptdel\ntags: [certified-robustness, randomized-smoothing]\n---",
        f"# {title}\n",
        f"- Classes: {classes}",
        f"- Noise: {_noise_text(settings['noise'])}, on units of kind `{settings['unit']['kind']}`",
        f"- Base classifier: {settings['base']}, fingerprint `{settings['fingerprint'][:16]}`",
        f"- Written by adaptdel {settings['version']}",
    ]
    if (protection := settings.get("protection")) is not None:
        is_crossed, chose_weights = protection.get("cross_validated", True), protection.get("chose_weights", False)
        is_estimate = is_crossed or chose_weights
        known = "it is estimated, not proved, to be at most" if is_estimate else "with 95% confidence it is at most"
        parts.append(
            f"- Protects **{protection.get('protect')}**: threshold {settings['threshold']:.4g}, for a rate of false "
            f"positives of {protection.get('max_false_positives'):g}; {known} "
            f"{protection.get('upper'):.3g} ({protection.get('false_positives')} of {protection.get('negatives')} "
            f"texts, by {'models of a cross-validation' if is_crossed else 'this model'}, not trained on them"
            f"{', though they decided which weights were kept' if chose_weights else ''})"
        )
        parts += [f"- **Warning**: {sentence}" for sentence in protection.get("warnings", [])]
    if training is not None:
        parts.append(_training(training, is_protected=protection is not None))
    if calibration is not None:
        parts.append(_calibration(calibration))
    parts.append(_use(settings))
    return "\n".join(parts)


def _noise_text(values: Mapping[str, Any]) -> str:
    """The noise as code; for a curve with many knots, what it keeps at a few lengths."""
    noise = noise_from_dict(values)
    if len(repr(noise)) <= LONGEST_NOISE:
        return f"`{noise!r}`"
    kept = ", ".join(f"{n * (1 - noise.share_removed(n)):.3g} of {n}" for n in (10, 30, 100, 300, 1000))
    return f"{type(noise).__name__} that keeps {kept} tokens (the whole curve is in the JSON files)"


def held_out_text(record: Mapping[str, Any], *, is_protected: bool) -> str:
    """The figures by class on held-out examples, from the record of a training; "" if they were not measured."""
    held = record.get("held_out")
    if held is None:
        if record.get("calibrated") or record["data"]["held_out"]:
            return ""
        return "no held-out examples: how accurate the model is on new texts is unknown"
    decided = " without the threshold of the protected class" if is_protected else ""
    chose = "" if record["settings"].get("model") == "linear" else ", which chose the weights that are kept"
    recalls = ", ".join(f"{label} {percent(share)}" for label, share in list(held["recall"].items())[:SHOWN_RECALLS])
    absent = ", ".join(held.get("absent", [])[:SHOWN_RECALLS])
    return (
        f"{held['inputs']} held-out examples{chose}, by {held['votes']} votes{decided}: clean accuracy "
        f"{percent(held['accuracy'], 2)}, balanced accuracy {percent(held['balanced_accuracy'], 2)}; recall by class: "
        f"{recalls}" + (f"; unknown, since none is held out: {absent}" if absent else "")
    )


def _training(record: Mapping[str, Any], *, is_protected: bool) -> str:
    data, versions = record["data"], record["versions"]
    lines = [
        "\n## Training\n",
        f"- Method: {record['method']}" + (f" at {record['rate']:.4g}" if record.get("rate") is not None else ""),
        f"- Noise while training: {_noise_text(record['noise'])}",
        f"- Data: {data['rows']} examples, {data['mean_length']:.4g} tokens on average; {data['held_out']} held out; "
        f"SHA-256 `{data['digest'][:16]}`",
        f"- Settings: {', '.join(f'{name} {value}' for name, value in record['settings'].items())}",
        f"- Time: {record['seconds']:.4g} s; {', '.join(f'{name} {value}' for name, value in versions.items())}",
    ]
    lines += [f"- Measured: {text}" for text in [held_out_text(record, is_protected=is_protected)] if text]
    lines += [f"- **Warning**: {sentence}" for sentence in record.get("warnings", [])]
    if record.get("calibrated") is False:
        lines.append("- **Not calibrated yet**: `adaptdel calibrate MODEL --data FILE` finds the rates of AdaptDel+.")
    return "\n".join(lines) + "\n\n" + history_table(record["history"])


def history_table(history: list[dict[str, Any]]) -> str:
    """A training history in Markdown; the middle of a long one is omitted."""
    if not history:
        return ""
    names = list(history[0])
    shown = history if len(history) <= SHOWN else [*history[: SHOWN // 2], None, *history[-SHOWN // 2 :]]
    rows = [["..."] * len(names) if row is None else [_cell(row.get(name)) for name in names] for row in shown]
    return text_table([name.replace("_", " ") for name in names], rows, text_columns=0).to_markdown()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _calibration(record: Mapping[str, Any]) -> str:
    lines = [
        "\n## Calibration\n",
        "The rates were searched for on labelled data; the trace is in `calibration.json`. Its figures are those of "
        "the data that the rates were chosen on, and therefore optimistic: certify other data.",
    ]
    lines += [f"- **Warning**: {sentence}" for sentence in record.get("warnings", [])]
    if rows := record.get("classes"):
        lines += ["", "By class, under the chosen rate:", "", class_table(rows[:SHOWN_CLASSES]).to_markdown()]
    return "\n".join(lines)


def _use(settings: Mapping[str, Any]) -> str:
    return f"""
## Use

```sh
adaptdel certify MODEL --data test.csv --out RUN
```

```python
import adaptdel as ad

model = ad.SmoothedClassifier.load("this folder")
certificate = model.certify(["a text"])[0]
print(certificate.label, certificate.radius)  # no attacker with up to so many edits can change the label; -1: none
```

A certificate holds with probability {1 - settings["alpha"]:g} over the noise that is drawn for the input. It says
that the answer stays the same, not that it is right.
"""


Model = Any  # a SmoothedClassifier, which is defined further down

CONFIG, TRAINING, CALIBRATION = "adaptdel.json", "training.json", "calibration.json"
EXAMPLES = "examples.json"  # texts to try, which `adaptdel serve` shows; loading does not need it
FORMAT = 1
_PLAIN = ("alpha", "n_select", "n_estimate", "sampling", "bound", "seed", "threshold", "k", "copies")

_FIELDS = {
    "base": "a text",
    "fingerprint": "a text",
    "version": "a text",
    "noise": "an object",
    "ops": "a list",
    "unit": "an object",
    "options": "an object?",
    "protection": "an object?",
    "files": "an object?",
    "classes": "a list",
    "bound": "a text",
    "sampling": "a text",
    "alpha": "a number",
    "threshold": "a number?",
    "seed": "a whole number",
    "k": "a whole number",
    "n_select": "a whole number",
    "n_estimate": "a whole number",
    "copies": "a whole number",
}
_PROTECTION_FIELDS = {
    "max_false_positives": "a number",
    "threshold": "a number",
    "upper": "a number",
    "negatives": "a whole number",
    "false_positives": "a whole number",
    "positives": "a whole number",
    "detected": "a whole number",
    "warnings": "a list?",
}
_TRAINING_FIELDS = {
    "method": "a text",
    "rate": "a number?",
    "settings": "an object",
    "seed": "a whole number",
    "validation": "a number?",
    "noise": "an object",
    "data": "an object",
    "history": "a list",
    "versions": "an object",
    "seconds": "a number",
    "identity": "an object?",
    "calibrated": "true or false?",
    "stratified": "true or false?",
    "held_out": "an object?",
    "warnings": "a list?",
}


_HELD_OUT_FIELDS = {
    "inputs": "a whole number",
    "votes": "a whole number",
    "accuracy": "a number",
    "balanced_accuracy": "a number",
    "recall": "an object",
    "absent": "a list?",
}


def save_model(model: Model, path: Path, extras: Callable[[Path], None] | None = None) -> None:
    """Write a model atomically; a folder that holds something else is not changed.

    ``extras`` may write more files into the new folder before it replaces the old one.
    """
    base = model.base_classifier()
    if not base.kind:
        base.save(path / "base")  # raises a ValueError for a unit that cannot be saved
    self_test = getattr(base, "self_test_", None)
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / CONFIG).exists())):
        raise ValueError(f"path must be a new folder, an empty one or a saved model, got {str(path)!r}")
    settings = {
        "format": FORMAT,
        "version": version("adaptdel"),
        "base": base.kind,
        "fingerprint": base.fingerprint(),
        "classes": base.classes_,
        "noise": model.rule().noise.to_dict(),
        "ops": list(model.rule().ops),
        "unit": check_unit(model.unit).to_dict(),
        "options": base.options(),
        "self_test": None if self_test is None else self_test.to_dict(),
        **_protection(model),
        "files": {},
        **{name: _plain(getattr(model, name)) for name in _PLAIN},
    }
    training, calibration = (getattr(model, name, None) for name in ("training_", "calibration_"))
    with replacing_folder(path) as partial:
        base.save(partial / "base")
        if not base.checks_own_files:
            settings["files"] = _hashes(partial / "base")
        write_json(partial / CONFIG, settings)
        if training is not None:
            write_json(partial / TRAINING, training)
        if calibration is not None:
            write_json(partial / CALIBRATION, calibration)
        write_text(partial / "README.md", model_card(settings, training, calibration))
        if extras is not None:
            extras(partial)


def _protection(model: Model) -> dict[str, Any]:
    """What is known about the decision threshold of a model, unless it was changed since."""
    known = getattr(model, "protection_", None)
    return {} if known is None or known["threshold"] != model.threshold else {"protection": known}


def load_model(cls: type[Model], path: Path, backend: str | None = None) -> Model:
    """Read a model, and check the fingerprint of its base classifier; errors name the file.

    ``backend`` runs a transformer instead of the backend that it was saved with.
    """
    config = path / CONFIG
    try:
        settings = _read(config)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(
            f"path must be a folder that save wrote, got {str(path)!r}"
            + (f" without {config.name}" if path.exists() else ", which does not exist")
            + ": give the folder of a model, such as adaptdel train writes"
        ) from None
    if settings.get("format") != FORMAT:
        raise ValueError(f"{config}: the format must be {FORMAT}, got {settings.get('format')!r:.60}")
    with _damaged(config):
        check_fields(settings, _FIELDS)
        if missing := [name for name in _PLAIN if name not in settings]:
            raise ValueError(f"{missing[0]} is missing")
        noise = noise_from_dict(settings["noise"])
        model = cls(
            None,
            noise,
            ops=tuple(settings["ops"]),
            unit=unit_from_dict(settings["unit"]),
            **{name: settings[name] for name in _PLAIN},
        )
        _check(model)
    base = _load_base(path / "base", settings, config, backend)
    if base.fingerprint_under((settings.get("options") or {}).get("backend")) != settings["fingerprint"]:
        raise ValueError(f"{path / 'base'}: the base classifier is not the one that was saved: its fingerprint differs")
    with _damaged(config):
        if settings["classes"] != base.classes_:
            raise ValueError("its classes are not those of the base classifier")
        count = len(settings["classes"])
        check_int("k", model.k, least=1, most=count - 1)
        if model.threshold is not None and count != 2:
            raise ValueError(f"threshold must be null for {count} classes")
        if (protection := settings.get("protection")) is not None:
            check_fields(protection, _PROTECTION_FIELDS)
            if protection.get("protect") not in settings["classes"]:
                raise ValueError(f"protect must be one of the classes, got {protection.get('protect')!r:.60}")
    model.base, model.base_, model.noise_ = base, base, noise
    for name, file, check in (("training_", TRAINING, check_training), ("calibration_", CALIBRATION, _check_warnings)):
        if (path / file).exists():
            setattr(model, name, _read(path / file, check))
    model.classes_ = np.array(base.classes_)
    if protection is not None:
        model.protection_ = protection
    return model


def read_noise(path: Path) -> tuple[Noise, Any]:
    """The noise and the unit of a saved model, without its base classifier."""
    config = path / CONFIG
    if not config.is_file():
        raise ValueError(f"{path}: must be the folder of a model, such as adaptdel train writes")
    settings = _read(config)
    with _damaged(config):
        check_fields(settings, {"noise": "an object", "unit": "an object"})
        return noise_from_dict(settings["noise"]), unit_from_dict(settings["unit"])


def check_training(record: dict[str, Any]) -> None:
    """Raise unless the record of a training has the fields that reports and calibration use."""
    check_fields(record, _TRAINING_FIELDS)
    noise_from_dict(record["noise"])
    if record.get("validation") is not None:
        check_probability("validation", record["validation"])
    data, history = record["data"], record["history"]
    check_fields(data, {"digest": "a text", "rows": "a whole number", "held_out": "a whole number"})
    check_fields(data, {"mean_length": "a number", "classes": "an object", "columns": "an object?"})
    if record.get("held_out") is not None:
        check_fields(record["held_out"], _HELD_OUT_FIELDS)
    if not history or not all(isinstance(row, dict) and row for row in history):
        raise ValueError("history must hold an object for every epoch")
    for row in history:
        check_fields(row, dict.fromkeys(row, "a number?"))


def _check_warnings(calibration: dict[str, Any]) -> None:
    check_fields(calibration, {"warnings": "a list?", "settings": "an object?", "classes": "a list?"})
    check_class_rows(calibration.get("classes") or ())


def data_columns(model: Model | Path, text: str | None, label: str | None) -> dict[str, str]:
    """The names of the columns of text and label: those given, or else those of the model's training data.

    ``model`` is a model or the folder of a saved one. The names in the settings are used if the model has none.
    """
    if isinstance(model, Path):
        training = _read(model / TRAINING, check_training) if (model / TRAINING).exists() else None
    else:
        training = getattr(model, "training_", None)
    data = (training or {}).get("data") or {}
    stored = data.get("columns") or {}
    names = {"text": DATA.text, "label": DATA.label} | {
        name: stored[name] for name in ("text", "label") if name in stored
    }
    names |= {name: given for name, given in (("text", text), ("label", label)) if given is not None}
    return {name: check_text(f"the column {name}", column) for name, column in names.items()}


def store_calibration(
    path: Path,
    calibration: dict[str, Any],
    noise: Noise,
    *,
    threshold: float | None = None,
    protection: dict[str, Any] | None = None,
) -> None:
    """Store a calibration in the folder of a saved model: the noise, the protecting threshold and the trace.

    The configuration is replaced last and atomically: until then the model is unchanged.
    """
    settings = _read(path / CONFIG)
    settings["noise"] = noise.to_dict()
    if protection is not None:
        settings |= {"threshold": threshold, "protection": protection}
    training = _read(path / TRAINING) if (path / TRAINING).exists() else None
    if training is not None:
        training["calibrated"] = True
        write_json(path / TRAINING, training)
    write_json(path / CALIBRATION, calibration)
    write_text(path / "README.md", model_card(settings, training, calibration))
    write_json(path / CONFIG, settings)


def _read(path: Path, check: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
    """The values of a file of a saved model, checked."""
    values = read_json(path, "a file of a saved model")
    if check is not None:
        with _damaged(path):
            check(values)
    return values


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Add the name of the file to an error."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: damaged: {error!s:.300}: save or copy the model anew") from None


def _check(model: Model) -> None:
    """Raise unless the settings of a model are valid."""
    SamplingPlan(model.rule(), model.alpha, model.n_select, model.n_estimate, model.sampling, model.seed)
    for name, least in (("n_select", 1), ("n_estimate", 0), ("copies", 1)):
        check_int(name, getattr(model, name), least=least, most=MOST_VOTES)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _load_base(folder: Path, settings: dict[str, Any], config: Path, backend: str | None) -> BaseClassifier:
    with _damaged(config):
        check_text("base", settings["base"])
    try:
        cls = classifier_class(settings["base"])
    except ValueError as error:
        raise ValueError(f"{config}: {error}") from None
    if not folder.is_dir():
        raise ValueError(f"{folder}: missing from a saved model: save or copy the model anew")
    options = settings.get("options") or {}
    with _damaged(config):
        cls.check_options(options)
    _check_files(folder, settings.get("files") or {})
    if backend is not None:
        cls.check_has_backends(check_choice("backend", backend, BACKEND_CHOICES))
        options = {**options, "backend": backend}
    try:
        return cls.load(folder, **options)
    except ImportError as error:
        if backend is None and options.get("backend") in BACKENDS[1:]:
            raise ImportError(f"{error}; or let torch run the model, with --backend torch") from None
        raise
    except Exception as error:  # for damaged files, libraries raise errors of many types
        clear = (str(folder), "backend must", "dtype must") if backend is not None else str(folder)
        if isinstance(error, ValueError) and str(error).startswith(clear):
            raise
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        reason = "its weights do not fit its config.json" if "ignore_mismatched_sizes" in reason else reason
        raise ValueError(f"{folder}: the model cannot be read ({reason}): save or copy it anew") from None


def _hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file of a folder."""
    hashes = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            hashes[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def _check_files(folder: Path, files: dict[str, str]) -> None:
    """Raise unless the files are those that were saved. This is checked before any library reads them."""
    try:
        hashes = _hashes(folder) if files else {}
    except OSError as error:
        raise ValueError(f"{error.filename}: cannot be read: {error.strerror or error}") from None
    for name, digest in files.items():
        if hashes.get(name) != digest:
            state = (
                "its SHA-256 differs from that of the saved file" if name in hashes else "missing from a saved model"
            )
            raise ValueError(f"{folder / name}: {state}: save or copy the model anew")
