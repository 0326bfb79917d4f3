"""Train a smoothed classifier by any method of the paper; the history of a training."""

from __future__ import annotations

import csv
import io
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel import plots
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.core.checks import check_choice
from adaptdel.core.noise import Deletion, Masking, Noise, NoNoise, RandomDeletion, RandomLength
from adaptdel.core.rates import FixedRate, LengthRate
from adaptdel.data import ExampleSet, Label, content_digest, split_examples
from adaptdel.progress import reporter
from adaptdel.settings import BACKEND, DTYPE, METHOD, METHODS, UNSMOOTHED, TrainingSettings
from adaptdel.smoothed import SmoothedClassifier
from adaptdel.tables import text_table
from adaptdel.units import check_unit

History = list[dict[str, Any]]
Report = Callable[[int, int], None] | None
CHECKED = 2000  # held-out examples on which the accuracy of a linear model is measured, at most
CHECK_VOTES = 100  # votes per example


@dataclass(frozen=True)
class MethodNoises:
    """The noise that a method trains under, and the noise of the smoothed classifier."""

    training: Noise
    smoothing: Noise


def method_noises(
    method: str,
    rate: float,
    lengths: Sequence[int],
    rates: tuple[float, float] = METHOD.rates,
    kept: tuple[float, float] | None = None,
) -> MethodNoises:
    """The noises of a method; AdaptDel's k is computed from the lengths of the training examples.

    AdaptDel+ trains under a rate drawn from ``rates`` for each copy, or one that keeps a number of tokens drawn from
    ``kept``. Until it is calibrated, it certifies with AdaptDel's rate.

    >>> method_noises("adaptdel", 0.9, [220, 240]).smoothing
    Deletion(rate=LengthRate(p_min=0.9, k=23, p_max=1.0))
    """
    check_choice("method", method, METHODS)
    if method in UNSMOOTHED:
        return MethodNoises(NoNoise(), NoNoise())
    if method == "ranmask":
        return MethodNoises(Masking(rate), Masking(rate))
    if method == "cert-ed":
        return MethodNoises(Deletion(FixedRate(rate)), Deletion(FixedRate(rate)))
    adaptive = Deletion(LengthRate.from_lengths(lengths, rate))
    if method == "adaptdel":
        return MethodNoises(adaptive, adaptive)
    return MethodNoises(RandomDeletion(*rates) if kept is None else RandomLength(*kept), adaptive)


def train(
    texts: Sequence[Any],
    labels: Sequence[Label],
    settings: TrainingSettings | None = None,
    *,
    validation: float | tuple[Sequence[Any], Sequence[Label]] | None = None,
    folder: Path | None = None,
    progress: Any = "auto",
    **fields: Any,
) -> SmoothedClassifier:
    """Train a smoothed classifier; its attribute ``training_`` describes the training.

    Args:
        texts: the examples.
        labels: their labels, whole numbers or names.
        settings: how to train; or give its fields by name: ``train(texts, labels, method="cert-ed", rate=0.95)``.
        validation: the fraction of the examples to hold out; or a pair (texts, labels) that takes its place.
        folder: keeps the checkpoints of a transformer, so that the same call resumes an interrupted training; None for
            a temporary folder.
        progress: True, False, "auto" (if standard error is a terminal) or a callable (done, total).
        fields: see `adaptdel.settings.TrainingSettings`.
    """
    if isinstance(validation, (int, float)):
        fields, validation = {**fields, "validation": validation}, None
    if settings is not None and fields:
        raise ValueError(f"give settings or fields, not both: {', '.join(fields)}")
    settings = TrainingSettings.from_dict(fields) if settings is None else settings
    started = time.monotonic()
    fraction = 0.0 if validation is not None else settings.held_out_fraction
    training_set, held = _split(texts, labels, settings, fraction, validation)
    rates = settings.noise
    noises = method_noises(settings.method, rates.rate, training_set.lengths, rates.rates, settings.kept)
    report = reporter(progress, "steps")
    if settings.is_linear:
        base, history, record = _train_linear(settings, training_set, noises.training, report)
    else:
        base, history, record = _train_transformer(settings, training_set, held, noises.training, folder, report)
    model = SmoothedClassifier(base, noises.smoothing, unit=settings.unit, progress=progress)
    model.base_, model.noise_ = base, noises.smoothing
    model.classes_ = np.array(base.classes_)
    if settings.is_linear:
        history = [*history[:-1], _with_accuracy(history[-1], model, held)]
    effective = settings.effective()
    model.training_ = {
        "method": settings.method,
        "rate": effective.get("rate"),
        "settings": effective,
        "seed": settings.seed,
        "validation": fraction or None,
        "noise": noises.training.to_dict(),
        "data": {"digest": content_digest(map(str, texts), labels), **_described(training_set, held)},
        "history": history,
        "versions": {name: version(name) for name in ("adaptdel", "numpy", "scipy")}
        | {"python": platform.python_version()}
        | record.pop("versions", {}),
        "seconds": round(time.monotonic() - started, 3),
        **record,
    }
    if settings.method == "adaptdel+":
        model.training_["calibrated"] = False
    return model


def _split(
    texts: Sequence[Any],
    labels: Sequence[Label],
    settings: TrainingSettings,
    fraction: float,
    validation: tuple[Sequence[Any], Sequence[Label]] | None,
) -> tuple[ExampleSet, ExampleSet]:
    """The training set and the held-out set."""
    if len(texts) != len(labels):
        raise ValueError(f"labels must be one for each of the {len(texts)} texts, got {len(labels)}")
    unit = check_unit(settings.unit)
    plain = [label.item() if hasattr(label, "item") else label for label in labels]
    examples = ExampleSet([unit.split(text) for text in texts], plain)
    held = None
    if validation is not None:
        if len(validation[0]) != len(validation[1]):
            raise ValueError(
                f"validation must hold one label for each of its {len(validation[0])} texts, got {len(validation[1])}"
            )
        held = ExampleSet([unit.split(text) for text in validation[0]], list(validation[1]))
    return split_examples(examples, map(str, texts), fraction=fraction, seed=settings.seed, validation=held)


def _train_linear(
    settings: TrainingSettings, examples: ExampleSet, noise: Noise, report: Report
) -> tuple[BaseClassifier, History, dict[str, Any]]:
    """The base classifier, the loss of every step, and nothing more to record."""
    options = asdict(settings.linear)
    classifier = LinearClassifier(features=options.pop("features"), bits=options.pop("bits"))
    classifier.fit(examples.tokens, examples.labels, noise=noise, seed=settings.seed, progress=report, **options)
    losses = classifier.training_["losses"] or [classifier.training_["loss"]]
    history: History = [
        {"step": step, "train_loss": loss, "valid_accuracy": None} for step, loss in enumerate(losses, start=1)
    ]
    return classifier, history, {}


def _with_accuracy(row: dict[str, Any], model: SmoothedClassifier, held: ExampleSet) -> dict[str, Any]:
    """The last row of a linear history, with the accuracy of the smoothed classifier on held-out examples."""
    if not held.tokens:
        return row
    unit = check_unit(model.unit)
    quick = SmoothedClassifier(
        model.base_, model.noise_, unit=model.unit, n_select=CHECK_VOTES, sampling="fixed", progress=False
    )
    answers = quick.predict([unit.join(tokens) for tokens in held.tokens[:CHECKED]]).tolist()
    return {**row, "valid_accuracy": float(np.mean([a == y for a, y in zip(answers, held.labels, strict=False)]))}


def _train_transformer(
    settings: TrainingSettings,
    examples: ExampleSet,
    held: ExampleSet,
    noise: Noise,
    folder: Path | None,
    report: Report,
) -> tuple[BaseClassifier, History, dict[str, Any]]:
    """The base classifier, its history by epochs, and what else is recorded."""
    from adaptdel.classifiers.transformers import TransformersClassifier

    if not held.tokens:
        raise ValueError(
            "validation must hold out at least one example for early stopping: give a larger fraction, or a file"
        )
    classifier = TransformersClassifier(
        settings.model,
        dtype=settings.dtype or DTYPE,
        backend=settings.backend or BACKEND,
        training=settings.transformer,
    )
    classifier.fit(
        examples.tokens,
        examples.labels,
        noise=noise,
        unit=settings.unit,
        seed=settings.seed,
        validation=(held.tokens, held.labels),
        folder=folder,
        freelb=settings.method == "freelb",
        progress=report,
    )
    record = {name: value for name, value in classifier.training_.items() if name not in ("noise", "history")}
    return classifier, classifier.training_["history"], record


def _described(examples: ExampleSet, held: ExampleSet) -> dict[str, Any]:
    lengths = np.array(examples.lengths)
    quartiles = [float(value) for value in np.percentile(lengths, [0, 25, 50, 75, 100])]
    return {
        "rows": len(examples.tokens),
        "held_out": len(held.tokens),
        "mean_length": float(lengths.mean()),
        "length_quartiles": quartiles,
        "classes": {str(label): list(examples.labels).count(label) for label in sorted(set(examples.labels), key=str)},
    }


def history_csv(history: History) -> str:
    """The history as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(history[0]) if history else ["epoch"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue()


def history_text(history: History, *, most: int = 20) -> str:
    """The history as a table for a terminal; the middle of a long history is omitted."""
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
    """Plot the losses, and the accuracy where it was measured, over epochs or steps."""
    step = "epoch" if history and "epoch" in history[0] else "step"
    figure = plots.new_figure(7, 3.6)
    with_accuracy = [row for row in history if row.get("valid_accuracy") is not None]
    panels = figure.subplots(1, 2 if len(with_accuracy) > 1 else 1, squeeze=False)[0]
    for name, colour, label in (("train_loss", "#1d6f65", "training"), ("valid_loss", "#c8553d", "held out")):
        rows = [row for row in history if row.get(name) is not None]
        if rows:
            panels[0].plot([row[step] for row in rows], [row[name] for row in rows], color=colour, lw=1.6, label=label)
    panels[0].set(xlabel=step, ylabel="loss")
    panels[0].legend(frameon=False)
    if len(with_accuracy) > 1:
        steps, accuracies = ([row[name] for row in with_accuracy] for name in (step, "valid_accuracy"))
        panels[1].plot(steps, accuracies, color="#c8553d")
        panels[1].set(xlabel=step, ylabel="accuracy on noisy held-out examples")
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    plots.save(figure, path)
