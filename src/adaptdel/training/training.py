"""Train a smoothed classifier by any method of the paper, or an additive classifier; the history of a training."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adaptdel.advice import few_kept, short_texts, what_may_help
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.core.masking import Masking
from adaptdel.core.noise import Deletion, Noise, NoNoise, RandomDeletion, noise_from_dict
from adaptdel.core.rates import FixedRate, LengthRate
from adaptdel.measures.class_measures import NAMED, answer_warnings
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.progress import reporter
from adaptdel.settings import FILTER, LINEAR, RATE, RATES, UNSMOOTHED, FilterSettings, TrainingSettings, adaptdel_rate
from adaptdel.tables import plural
from adaptdel.text.data import (
    DrawnRows,
    ExampleSet,
    Label,
    SplitTexts,
    content_digest,
    held_out_rows,
    split_held_out,
    text_hashes,
)
from adaptdel.text.units import Tokens, check_unit
from adaptdel.training.choice import Choice, Proof, fit_filter

History = list[dict[str, Any]]
Report = Callable[[int, int], None] | None
Note = Callable[[str], None]
TrainAgain = Callable[[Noise, Sequence[Any], Sequence[Any]], BaseClassifier]
CHECKED = 2000  # held-out examples on which the accuracy of a linear model is measured, at most
CHECK_VOTES = 100  # votes per example
CHECKED_SLOW, CHECK_VOTES_SLOW = 200, 32  # the same for a transformer
FEW_EXAMPLES = 10  # of a class, in training: with fewer, a warning says so


class MethodNoises(NamedTuple):
    """The noise that a method trains under, and the noise of the smoothed classifier."""

    training: Noise
    smoothing: Noise


def method_noises(settings: TrainingSettings, lengths: Sequence[int]) -> MethodNoises:
    """The noises of a method; AdaptDel's k is computed from the lengths of the training examples unless it is given.

    AdaptDel+ trains under a rate drawn from ``rates`` for each copy. Until it is calibrated, it certifies with
    AdaptDel's.

    >>> method_noises(TrainingSettings(method="adaptdel"), [220, 240]).smoothing
    Deletion(rate=LengthRate(p_min=0.9, k=23, p_max=1.0))
    """
    method, rate = settings.method, settings.rate or RATE
    if method in UNSMOOTHED:
        return MethodNoises(NoNoise(), NoNoise())
    if settings.noise is not None:
        own = noise_from_dict(settings.noise)
        return MethodNoises(own, own)
    if method == "ranmask":
        return MethodNoises(Masking(rate), Masking(rate))
    if method == "cert-ed":
        return MethodNoises(Deletion(FixedRate(rate)), Deletion(FixedRate(rate)))
    adaptive = Deletion(adaptdel_rate(lengths, rate) if settings.k is None else LengthRate(rate, settings.k))
    if method == "adaptdel":
        return MethodNoises(adaptive, adaptive)
    return MethodNoises(RandomDeletion(*settings.rates or RATES), adaptive)


def train(
    texts: Sequence[Any],
    labels: Sequence[Label],
    settings: TrainingSettings | None = None,
    *,
    tokens: Sequence[Tokens] | None = None,
    validation: float | tuple[Sequence[Any], Sequence[Label]] | None = None,
    folder: Path | None = None,
    progress: Any = "auto",
    note: Note = lambda text: None,
    **fields: Any,
) -> SmoothedClassifier:
    """Train a smoothed classifier; its ``records`` describe the training.

    Args:
        texts: the examples.
        labels: their labels, integers or names.
        settings: how to train; or give its fields by name: ``train(texts, labels, method="cert-ed", rate=0.95)``.
        tokens: the tokens of the texts, if they are split already.
        validation: the fraction of the examples to hold out; or a pair (texts, labels) that takes its place.
        folder: keeps the checkpoints of a transformer, so that the same call resumes an interrupted training; None for
            a temporary folder.
        progress: True, False, "auto" (if standard error is a terminal) or a callable (done, total).
        note: called with remarks as they come: the expected time, and a line for every epoch of a transformer.
        fields: see `adaptdel.settings.TrainingSettings`.
    """
    if isinstance(validation, (int, float)):
        fields, validation = {**fields, "validation": validation}, None
    if settings is not None and fields:
        raise ValueError(f"give settings or fields, not both: {', '.join(fields)}")
    settings = TrainingSettings.from_dict(fields) if settings is None else settings
    if settings.is_exact:
        raise ValueError("method exact trains no smoothed classifier: use train_exact, or AdditiveClassifier")
    started = time.monotonic()
    examples = _examples(texts, labels, settings, tokens)
    fraction = 0.0 if validation is not None else settings.held_out_fraction
    rows = held_out_rows(map(str, texts), examples.labels, fraction, settings.seed)
    given = None if validation is None else _examples(*validation, settings, None, "validation: ")
    training_set, held = split_held_out(examples, rows, given)
    settings = settings.resolved(training_set.lengths)

    noises = method_noises(settings, training_set.lengths)
    report = reporter(progress, "steps")
    if settings.is_linear:
        base: BaseClassifier = fit_linear(
            settings.effective(), noises.training, training_set.tokens, training_set.labels, report
        )
        history, record = _linear_history(base), dict[str, Any]()
    else:
        base, history, record = _train_transformer(settings, training_set, held, noises.training, folder, report, note)
    model = SmoothedClassifier(unit=settings.unit, progress=progress)
    model.use_noise(noises.smoothing, base)
    model.classes_ = np.array(base.classes_)
    checked = _held_out_check(model, held, settings)
    if settings.is_linear and checked is not None:
        history = [*history[:-1], {**history[-1], "valid_accuracy": checked["accuracy"]}]
    known = _record(settings, texts, labels, training_set, held, started)
    if validation is not None:
        known["data"]["validation_digest"] = content_digest(map(str, validation[0]), validation[1])
    warnings = small_classes(training_set.labels) + [s for s in [few_kept(noises.smoothing, training_set.lengths)] if s]
    if settings.method not in UNSMOOTHED and (sentence := short_texts(settings.unit, training_set.lengths)):
        note(sentence)
    # The training texts tell later commands what the model has seen. Of the others, nothing depends on those that are
    # "held out"; those that are "validation" decided which weights are kept, as of transformers.
    seen, others = (
        [text for text, is_held in zip(texts, rows, strict=True) if is_held == kind] for kind in (False, True)
    )
    model.record(
        training={
            **known,
            "validation": fraction or None,
            "stratified": True,
            "held_out": checked,
            "noise": noises.training.to_dict(),
            "history": history,
            **({"calibrated": False} if settings.method == "adaptdel+" else {}),
            "warnings": warnings + (checked or {}).pop("warnings", []),
            **record,
            "versions": record.get("versions", {}) | known["versions"],
        },
        texts={
            "training": text_hashes(seen),
            "held out" if settings.is_linear else "validation": text_hashes(validation[0] if validation else others),
        },
    )
    return model


def train_exact(
    texts: Sequence[Any],
    labels: Sequence[Label],
    settings: TrainingSettings,
    *,
    tokens: Sequence[Tokens] | None = None,
    protect: tuple[Any, Proof] | None = None,
    goal: FilterSettings = FILTER,
    progress: Any = "auto",
) -> tuple[AdditiveClassifier, Choice | None]:
    """Train an additive classifier, whose certificates are exact; its ``records`` describe the training.

    All texts train it, after a part of them has chosen its clip: see `AdditiveClassifier.fit`. If ``protect`` names a
    class and the proof that is to come, the model is a filter: see `adaptdel.training.choice`.
    """
    started = time.monotonic()
    model = AdditiveClassifier(
        unit=settings.unit,
        class_weight=settings.class_weight,
        seed=settings.seed,
        progress=progress,
        **asdict(settings.additive),
    )
    examples = _examples(texts, labels, settings, tokens)
    choice = None
    if protect is None:
        model.fit_clips(examples.tokens, examples.labels)
    else:
        choice = fit_filter(model, examples.tokens, examples.labels, *protect, goal)
    model.record(
        training={
            **_record(settings, texts, labels, examples, ExampleSet([], []), started),
            **dict.fromkeys(("validation", "held_out", "noise", "history")),
            "warnings": small_classes(examples.labels) + (model.radius_warnings() if choice is None else []),
        },
        texts={"training": text_hashes(texts)},
    )
    return model, choice


def _examples(
    texts: Sequence[Any],
    labels: Sequence[Label],
    settings: TrainingSettings,
    tokens: Sequence[Tokens] | None,
    where: str = "",
) -> ExampleSet:
    """The examples; the texts for a transformer are split whenever they are asked for."""
    if len(texts) != len(labels):
        raise ValueError(f"{where}labels must be one for each of the {len(texts)} texts, got {len(labels)}")
    if tokens is None:
        split = SplitTexts(texts, check_unit(settings.unit))
        tokens = list(split) if settings.is_linear else split
    return ExampleSet(tokens, [label.item() if hasattr(label, "item") else label for label in labels])


def _record(
    settings: TrainingSettings,
    texts: Sequence[Any],
    labels: Sequence[Label],
    examples: ExampleSet,
    held: ExampleSet,
    started: float,
) -> dict[str, Any]:
    """What is recorded of every training: its settings, its data with their SHA-256, the versions of libraries."""
    effective, lengths = settings.effective(), np.array(examples.lengths)
    libraries = {name: version(name) for name in ("adaptdel", "numpy", "scipy")}
    return {
        "method": settings.method,
        "rate": effective.get("rate"),
        "settings": effective,
        "seed": settings.seed,
        "data": {
            "digest": content_digest(map(str, texts), labels),
            "rows": len(examples.labels),
            "held_out": len(held.labels),
            "mean_length": float(lengths.mean()),
            "length_quartiles": [float(value) for value in np.percentile(lengths, [0, 25, 50, 75, 100])],
            "classes": {str(label): examples.labels.count(label) for label in sorted(set(examples.labels), key=str)},
        },
        "versions": {**libraries, "python": platform.python_version()},
        "seconds": round(time.monotonic() - started, 3),
    }


def small_classes(labels: Sequence[Any]) -> list[str]:
    """A sentence if there are few examples, in all or of a class."""
    label, count = min(Counter(map(str, labels)).items(), key=lambda item: (item[1], item[0]))
    if count >= FEW_EXAMPLES:
        return []
    return [
        f"the class {label} has {plural(count, 'example')} to train on, of {len(labels)} in all: give at least "
        f"{FEW_EXAMPLES} of each class; figures about it have no meaning"
    ]


def fit_linear(
    known: Mapping[str, Any], noise: Noise, tokens: Sequence[Any], labels: Sequence[Any], progress: Report = None
) -> LinearClassifier:
    """A linear base classifier, trained under a noise as the settings in the record of a training say."""
    options = {name: known[name] for name in asdict(LINEAR) if name in known}
    form = {name: options.pop(name) for name in ("bits", "ngram") if name in options}
    options |= {"class_weight": known.get("class_weight"), "seed": known.get("seed", 0)}
    options["unit"] = check_unit(known.get("unit", "word"))
    return LinearClassifier(**form).fit(tokens, labels, noise=noise, progress=progress, **options)


def _linear_history(classifier: Any) -> History:
    """The loss of every step of a linear classifier."""
    losses = classifier.training_["losses"] or [classifier.training_["loss"]]
    return [{"step": step, "train_loss": loss, "valid_accuracy": None} for step, loss in enumerate(losses, start=1)]


def retraining(record: Mapping[str, Any]) -> TrainAgain | None:
    """A function that trains a base classifier as the record of a training says, under another noise.

    None if there is no record, or if training takes more than seconds: linear models only are trained again.
    """
    known = record.get("settings") or {}
    return partial(fit_linear, known) if known.get("model") == "linear" else None


def retrained_record(record: Mapping[str, Any], base: BaseClassifier, noise: Noise) -> dict[str, Any]:
    """The record of a training whose base classifier was replaced by one that `retraining` trained under a noise.

    What was measured on held-out texts belongs to the earlier base classifier, and is dropped, with its warnings.
    """
    known = {**record, "noise": noise.to_dict(), "calibrated": True, "history": _linear_history(base), "held_out": None}
    classes = [label for label, count in record["data"]["classes"].items() for _ in range(count)]
    return known | {"warnings": small_classes(classes)}


def _held_out_check(model: SmoothedClassifier, held: ExampleSet, settings: TrainingSettings) -> dict[str, Any] | None:
    """The answers of the smoothed classifier on held-out examples, as users see them: by the vote, and by class.

    Of many examples some are drawn: the first ones of a file can all be of one class.
    """
    if not held.labels:
        return None
    most, votes = (CHECKED, CHECK_VOTES) if settings.is_linear else (CHECKED_SLOW, CHECK_VOTES_SLOW)
    chosen = DrawnRows(most, settings.seed).positions(held.labels)
    held = ExampleSet([held.tokens[place] for place in chosen], [held.labels[place] for place in chosen])
    plan = replace(model.prediction_plan(), n_select=votes, sampling="fixed", enumerates=False)
    certifier = model.certifier(plan)
    inputs = certifier.prepared((f"held-out example {n}", tokens) for n, tokens in enumerate(held.tokens))
    given = [certifier.classes[evidence.predicted(plan)] for _, evidence in sorted(certifier.observed(inputs))]
    counts = Counter(held.labels)
    hits = Counter(label for answer, label in zip(given, held.labels, strict=True) if answer == label)
    advice = what_may_help(plan.noise, held.lengths, settings.class_weight)
    return {
        "inputs": len(given),
        "votes": votes,
        "accuracy": hits.total() / len(given),
        "balanced_accuracy": float(np.mean([hits[label] / count for label, count in counts.items()])),
        "recall": {str(label): hits[label] / count for label, count in sorted(counts.items(), key=lambda i: str(i[0]))},
        "absent": [str(label) for label in model.classes_.tolist() if label not in counts],
        "warnings": answer_warnings(given, held.labels, held.lengths) or _missed_rare_classes(counts, hits, advice),
    }


def _missed_rare_classes(counts: Counter[Label], hits: Counter[Label], advice: str) -> list[str]:
    """A sentence if no held-out example of a class is recognised, and there are too few of them to conclude from it."""
    missed = [f"{count} of {label!s}" for label, count in counts.items() if not hits[label]]
    if not missed:
        return []
    return [
        f"none of the few held-out examples of some classes is recognised ({', '.join(sorted(missed)[:NAMED])}): hold "
        f"out more, with --set validation=0.5, to see whether the model finds these classes, or {advice}; of two "
        "classes, --protect answers the rare one more often"
    ]


def _train_transformer(
    settings: TrainingSettings,
    examples: ExampleSet,
    held: ExampleSet,
    noise: Noise,
    folder: Path | None,
    report: Report,
    note: Note,
) -> tuple[BaseClassifier, History, dict[str, Any]]:
    """The base classifier, its history by epochs, and what else is recorded."""
    from adaptdel.classifiers.transformers import TrainingRun, TransformersClassifier

    if not held.tokens:
        raise ValueError(
            "validation must hold out at least one example for early stopping: give a larger fraction, or a file"
        )
    chosen = settings.transformer
    steps = -(-len(examples.tokens) // chosen.batch_size)
    note(
        f"trains for up to {chosen.epochs} epochs of {steps} steps; stops after {chosen.patience} epochs without a "
        "smaller loss on held-out examples, and keeps the best"
    )
    classifier = TransformersClassifier(
        settings.model,
        dtype=chosen.dtype,
        max_length=chosen.max_length,
        training=chosen,
    )
    classifier.fit(
        examples.tokens,
        examples.labels,
        noise=noise,
        unit=settings.unit,
        seed=settings.seed,
        validation=(held.tokens, held.labels),
        run=TrainingRun(
            folder=folder,
            freelb=settings.method == "freelb",
            class_weight=settings.class_weight,
            progress=report,
            epoch_done=lambda row: note(_epoch_line(row, chosen.epochs)),
        ),
    )
    history = classifier.training_["history"]
    record = {name: value for name, value in classifier.training_.items() if name not in ("noise", "history")}
    return classifier, history, record


def _epoch_line(row: Mapping[str, float], epochs: int) -> str:
    parts = [f"{name.replace('_', ' ')} {row[name]:.4g}" for name in ("train_loss", "valid_loss", "valid_accuracy")]
    return f"epoch {row['epoch']:g} of {epochs}: {', '.join(parts)}, {row['seconds']:.3g} s"
