"""From labelled texts to a smoothed model, by any method of the paper."""

from __future__ import annotations

import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.classifiers.base import BaseClassifier
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.data import Label
from adaptdel.data.examples import content_digest
from adaptdel.noise import Noise
from adaptdel.progress import reporter
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.training.history import History
from adaptdel.training.methods import method_noises
from adaptdel.training.parts import Part, split
from adaptdel.training.settings import LINEAR, Settings
from adaptdel.units import check_unit

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
