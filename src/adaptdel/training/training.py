"""From labelled texts to a smoothed model, by any method of the paper; the history of a training."""

from __future__ import annotations

import csv
import io
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel import plots
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.core.noise import Noise
from adaptdel.data import Label, content_digest, held_out
from adaptdel.progress import reporter
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.tables import text_table
from adaptdel.training.settings import LINEAR, Settings, method_noises
from adaptdel.units import Tokens, Unit, check_unit


@dataclass(frozen=True)
class Part:
    """Some examples: tokens and labels."""

    tokens: list[Tokens]
    labels: list[Label]

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each."""
        return [len(tokens) for tokens in self.tokens]


def split(
    texts: Sequence[Any],
    labels: Sequence[Label],
    unit: Unit,
    *,
    share: float,
    seed: int,
    validation: tuple[Sequence[Any], Sequence[Label]] | None = None,
) -> tuple[Part, Part]:
    """(the part to train on, the part held out): by content, or as given in ``validation``."""
    if len(texts) != len(labels):
        raise ValueError(f"labels must be one for each of the {len(texts)} texts, got {len(labels)}")
    plain = [label.item() if hasattr(label, "item") else label for label in labels]
    out = [share > 0 and held_out(str(text), share, seed) for text in texts]
    train = _part([(t, y) for t, y, is_out in zip(texts, plain, out, strict=True) if not is_out], unit)
    if validation is None:
        valid = _part([(t, y) for t, y, is_out in zip(texts, plain, out, strict=True) if is_out], unit)
    else:
        valid = _part(list(zip(*validation, strict=True)), unit)
    _check_classes(train, valid, set(plain))
    return train, valid


def _part(rows: Sequence[tuple[Any, Label]], unit: Unit) -> Part:
    return Part([unit.split(text) for text, _ in rows], [label for _, label in rows])


def _check_classes(train: Part, valid: Part, classes: set[Label]) -> None:
    if not train.tokens:
        raise ValueError("training needs at least one example, got none")
    if len(classes) < 2:
        raise ValueError(f"labels must be of at least two classes, got only {next(iter(classes))!r}")
    missing = classes - set(train.labels)
    if missing:
        raise ValueError(
            f"the class {sorted(map(str, missing))[0]!r} has no example left to train on: "
            "hold out fewer (validation), or give more examples"
        )
    unknown = set(valid.labels) - set(train.labels)
    if unknown:
        raise ValueError(
            f"the validation examples have a class that training has not: {sorted(map(str, unknown))[0]!r}"
        )


History = list[dict[str, Any]]


def history_csv(history: History) -> str:
    """The history as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(history[0]) if history else ["epoch"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue()


def history_text(history: History, *, most: int = 20) -> str:
    """The history in columns for a terminal; the middle of a long one is left out."""
    if not history:
        return "no epochs"
    names = list(history[0])
    shown = list(history) if len(history) <= most else [*history[: most // 2], {}, *history[-most // 2 :]]
    cells = [[_cell(row.get(name)) if row else "..." for name in names] for row in shown]
    return text_table([name.replace("_", " ") for name in names], cells, text_columns=0).to_terminal()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def plot_history(history: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the losses, and the accuracy where there is one, over epochs or steps."""
    step = "epoch" if history and "epoch" in history[0] else "step"
    figure = plots.new_figure(7, 3.6)
    accurate = [row for row in history if row.get("valid_accuracy") is not None]
    panels = figure.subplots(1, 2 if len(accurate) > 1 else 1, squeeze=False)[0]
    for name, colour, label in (("train_loss", "#1d6f65", "training"), ("valid_loss", "#c8553d", "held out")):
        rows = [row for row in history if row.get(name) is not None]
        if rows:
            panels[0].plot([row[step] for row in rows], [row[name] for row in rows], color=colour, lw=1.6, label=label)
    panels[0].set(xlabel=step, ylabel="loss")
    panels[0].legend(frameon=False)
    if len(accurate) > 1:
        panels[1].plot([row[step] for row in accurate], [row["valid_accuracy"] for row in accurate], color="#c8553d")
        panels[1].set(xlabel=step, ylabel="accuracy on noisy held-out examples")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    plots.save(figure, path)


CHECKED = 2000  # held-out examples that a linear model is checked on
CHECK_VOTES = 100
Report = Callable[[int, int], None] | None


@dataclass(frozen=True)
class Base:
    """A trained base classifier, how it went, and what else is worth keeping."""

    classifier: BaseClassifier
    history: History
    record: dict[str, Any]


def train(
    texts: Sequence[Any],
    labels: Sequence[Label],
    settings: Settings | None = None,
    *,
    validation: tuple[Sequence[Any], Sequence[Label]] | None = None,
    folder: Path | None = None,
    progress: Any = "auto",
    **fields: Any,
) -> SmoothedClassifier:
    """Train a smoothed model; ``model.training_`` says how it went.

    Args:
        texts: the examples.
        labels: their labels, whole numbers or names.
        settings: how to train; or give its fields by name: ``train(texts, labels, method="cert-ed", rate=0.95)``.
        validation: texts and labels that are held out, in place of a share of ``texts``.
        folder: where a transformer's training keeps its checkpoints: the same call with the same folder goes on from
            there. None keeps them in a temporary folder.
        progress: True, False, "auto" (if a terminal watches) or a callable (done, total).
        fields: see `Settings`.
    """
    if settings is not None and fields:
        raise ValueError(f"give settings or fields, not both: {', '.join(fields)}")
    settings = Settings.from_dict(fields) if settings is None else settings
    unit = check_unit(settings.unit)
    started = time.monotonic()
    share = 0.0 if validation is not None else settings.share
    part, held = split(texts, labels, unit, share=share, seed=settings.seed, validation=validation)
    chosen = settings.effective()
    ranges = settings.rates or (0.7, 0.99), settings.kept
    noises = method_noises(settings.method, chosen.get("rate", 0.9), part.lengths, *ranges)
    report = reporter(progress, "steps")
    if settings.linear:
        base = _linear(settings, part, noises.training, report)
    else:
        base = _transformer(settings, part, held, noises.training, folder, report)
    model = SmoothedClassifier(base.classifier, noises.smoothing, unit=settings.unit, progress=progress)
    model.base_, model.noise_ = base.classifier, noises.smoothing
    model.classes_ = np.array(base.classifier.classes_)
    history = base.history if not settings.linear else [*base.history[:-1], _checked(base.history[-1], model, held)]
    model.training_ = {
        "method": settings.method,
        "rate": chosen.get("rate"),
        "settings": chosen,
        "seed": settings.seed,
        "validation": share or None,
        "noise": noises.training.to_dict(),
        "data": {"digest": content_digest(map(str, texts), labels), **_described(part, held)},
        "history": history,
        "versions": {name: version(name) for name in ("adaptdel", "numpy", "scipy")}
        | {"python": platform.python_version()}
        | base.record.pop("versions", {}),
        "seconds": round(time.monotonic() - started, 3),
        **base.record,
    }
    if settings.method == "adaptdel+":
        model.training_["calibrated"] = False
    return model


def _linear(settings: Settings, part: Part, noise: Noise, report: Report) -> Base:
    options = {
        name: default if getattr(settings, name) is None else getattr(settings, name)
        for name, default in LINEAR.items()
    }
    classifier = LinearClassifier(features=options.pop("features"), bits=options.pop("bits"))
    classifier.fit(part.tokens, part.labels, noise=noise, seed=settings.seed, progress=report, **options)
    losses = classifier.training_["losses"]
    losses = losses or [classifier.training_["loss"]]
    history: History = [
        {"step": step, "train_loss": loss, "valid_accuracy": None} for step, loss in enumerate(losses, start=1)
    ]
    return Base(classifier, history, {})


def _checked(row: dict[str, Any], model: SmoothedClassifier, held: Part) -> dict[str, Any]:
    """The last row of a linear history, with the accuracy of the smoothed model on held-out examples."""
    if not held.tokens:
        return row
    some = held.tokens[:CHECKED]
    unit = check_unit(model.unit)
    quick = SmoothedClassifier(
        model.base_, model.noise_, unit=model.unit, n_select=CHECK_VOTES, sampling="fixed", progress=False
    )
    answers = quick.predict([unit.join(tokens) for tokens in some]).tolist()
    return {**row, "valid_accuracy": float(np.mean([a == y for a, y in zip(answers, held.labels, strict=False)]))}


def _transformer(settings: Settings, part: Part, held: Part, noise: Noise, folder: Path | None, report: Report) -> Base:
    from adaptdel.training.transformer import train_transformer

    if not held.tokens:
        raise ValueError(
            "validation must hold out at least one example, for early stopping: raise the share, or give a file"
        )
    with tempfile.TemporaryDirectory() as temporary:
        trained = train_transformer(
            settings.model,
            part.tokens,
            part.labels,
            valid_tokens=held.tokens,
            valid_labels=held.labels,
            noise=noise,
            unit=check_unit(settings.unit),
            schedule=settings.schedule,
            folder=Path(temporary) if folder is None else folder,
            freelb=settings.method == "freelb",
            progress=report,
            dtype=settings.dtype or "float32",
        )
    return Base(trained.classifier, trained.history, dict(trained.record))


def _described(part: Part, held: Part) -> dict[str, Any]:
    lengths = np.array(part.lengths)
    quartiles = [float(value) for value in np.percentile(lengths, [0, 25, 50, 75, 100])]
    return {
        "rows": len(part.tokens),
        "held_out": len(held.tokens),
        "mean_length": float(lengths.mean()),
        "length_quartiles": quartiles,
        "classes": {str(label): part.labels.count(label) for label in sorted(set(part.labels), key=str)},
    }
