"""Train a smoothed classifier by any method of the paper, or an additive classifier; the history of a training."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from adaptdel.advice import few_kept, is_short, short_texts, what_may_help
from adaptdel.certification.sampling import content_key
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.core.masking import Masking
from adaptdel.core.noise import Deletion, Noise, NoNoise, RandomDeletion, noise_from_dict
from adaptdel.core.rates import FixedRate, LengthRate
from adaptdel.measures.class_measures import NAMED, answer_warnings
from adaptdel.models.additive import AdditiveClassifier
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.progress import reporter
from adaptdel.settings import LINEAR, RATE, RATES, UNSMOOTHED, TrainingSettings, adaptdel_rate
from adaptdel.text.data import (
    DrawnRows,
    ExampleSet,
    Label,
    SplitTexts,
    TextHashes,
    content_digest,
    held_out_rows,
    split_held_out,
    text_hashes,
)
from adaptdel.text.units import Tokens, check_unit
from adaptdel.training.protection import choose_bound

History = list[dict[str, Any]]
Report = Callable[[int, int], None] | None
TrainAgain = Callable[[Noise, Sequence[Any], Sequence[Any]], BaseClassifier]
TRIED = 2000  # texts on which an additive classifier is tried, at most
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


def exact_reach(texts: Sequence[Any], labels: Sequence[Label], unit: str, seed: int = 0) -> Mapping[str, Any] | None:
    """What exact certificates reach on held-out ones of at most `TRIED` texts, as in `AdditiveClassifier.front_`.

    None if there are too few examples of a class.
    """
    places = DrawnRows(TRIED, seed).places(texts)
    chosen = [labels[place] for place in places]
    if len(set(chosen)) < 2 or min(Counter(chosen).values()) < FEW_EXAMPLES:
        return None
    model = AdditiveClassifier(unit=unit, seed=seed, progress=False).fit([texts[place] for place in places], chosen)
    return model.front_[model.base_classifier().options()["point"]]


def train(
    texts: Sequence[Any],
    labels: Sequence[Label],
    settings: TrainingSettings | None = None,
    *,
    tokens: Sequence[Tokens] | None = None,
    validation: float | tuple[Sequence[Any], Sequence[Label]] | None = None,
    folder: Path | None = None,
    progress: Any = "auto",
    note: Callable[[str], None] = lambda text: None,
    **fields: Any,
) -> SmoothedClassifier:
    """Train a smoothed classifier; its attribute ``training_`` describes the training.

    Args:
        texts: the examples.
        labels: their labels, integers or names.
        settings: how to train; or give its fields by name: ``train(texts, labels, method="cert-ed", rate=0.95)``.
        tokens: the tokens of the texts, if they are split already.
        validation: the fraction of the examples to hold out; or a pair (texts, labels) that takes its place.
        folder: keeps the checkpoints of a transformer, so that the same call resumes an
            interrupted training; None for a temporary folder.
        progress: True, False, "auto" (if standard error is a terminal) or a callable (done, total).
        note: called with remarks as they come: the expected time, and a line for every epoch of a
            transformer.
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
    fraction = 0.0 if validation is not None else settings.held_out_fraction
    training_set, held = _split(texts, labels, tokens, settings, fraction, validation)
    settings = settings.resolved(training_set.lengths)

    noises = method_noises(settings, training_set.lengths)
    report = reporter(progress, "steps")
    if settings.is_linear:
        base, history = _train_linear(settings, training_set, noises.training, report)
        record: dict[str, Any] = {}
    else:
        base, history, record = _train_transformer(settings, training_set, held, noises.training, folder, report, note)
    model = SmoothedClassifier(base, noises.smoothing, unit=settings.unit, progress=progress)
    model.base_, model.noise_ = base, noises.smoothing
    model.classes_ = np.array(base.classes_)
    checked = _held_out_check(model, held, settings.class_weight, quick=settings.is_linear)
    if settings.is_linear and checked is not None:
        history = [*history[:-1], {**history[-1], "valid_accuracy": checked["accuracy"]}]
    model.training_ = {
        **_record(settings, texts, labels, training_set, held, validation),
        "validation": fraction or None,
        "stratified": True,
        "held_out": checked,
        "noise": noises.training.to_dict(),
        "history": history,
        "seconds": round(time.monotonic() - started, 3),
        **record,
    }
    model.training_["versions"] = model.training_["versions"] | _versions()
    model.texts_ = _used_texts(settings, texts, labels, fraction, validation)
    if settings.method == "adaptdel+":
        model.training_["calibrated"] = False
    sentences = _small_classes(model.training_)
    if (sentence := few_kept(noises.smoothing, training_set.lengths)) is not None:
        sentences.append(sentence)
    if settings.method not in UNSMOOTHED and is_short(settings.unit, training_set.lengths):
        note(short_texts(training_set.lengths, exact_reach(texts, labels, settings.unit, settings.seed)))
    model.training_["warnings"] = sentences + (checked or {}).pop("warnings", [])
    return model


def train_exact(
    texts: Sequence[Any],
    labels: Sequence[Label],
    settings: TrainingSettings,
    *,
    protect: tuple[Any, float] | None = None,
    progress: Any = "auto",
    note: Callable[[str], None] = lambda text: None,
) -> AdditiveClassifier:
    """Train an additive classifier, whose certificates are exact; its attribute ``training_`` describes the training.

    All texts train it, after a part of them has chosen its bound: see `AdditiveClassifier.fit`, and `choose_bound` if
    ``protect`` names a class and the share of other texts that may get its answer.
    """
    started = time.monotonic()
    model = AdditiveClassifier(
        unit=settings.unit,
        class_weight=settings.class_weight,
        settings=settings.additive,
        seed=settings.seed,
        progress=progress,
    )
    held_out = model.fit_bounds(texts, labels)
    if protect is not None:
        choose_bound(model, held_out, *protect, settings.additive.max_accuracy_loss)
    split = check_unit(settings.unit).split
    examples = ExampleSet([split(text) for text in texts], list(labels))
    model.training_ = {
        **_record(settings, texts, labels, examples, ExampleSet([], []), None),
        "validation": None,
        "held_out": None,
        "noise": None,
        "history": None,
        "seconds": round(time.monotonic() - started, 3),
    }
    model.training_["warnings"] = _small_classes(model.training_)
    model.texts_ = {"training": text_hashes(texts)}
    if is_short(settings.unit, examples.lengths):
        note(short_texts(examples.lengths, model.front_[model.base_classifier().options()["point"]]))
    return model


def _record(
    settings: TrainingSettings,
    texts: Sequence[Any],
    labels: Sequence[Label],
    examples: ExampleSet,
    held: ExampleSet,
    validation: tuple[Sequence[Any], Sequence[Label]] | None,
) -> dict[str, Any]:
    """What is recorded of every training: its settings, its data with their SHA-256, the versions of libraries."""
    effective = settings.effective()
    given = {"digest": (texts, labels)} | ({} if validation is None else {"validation_digest": validation})
    digests = {name: content_digest(map(str, rows), own) for name, (rows, own) in given.items()}
    return {
        "method": settings.method,
        "rate": effective.get("rate"),
        "settings": effective,
        "seed": settings.seed,
        "data": {**digests, **_described(examples, held)},
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    known = {name: version(name) for name in ("adaptdel", "numpy", "scipy")}
    return known | {"python": platform.python_version()}


def _used_texts(
    settings: TrainingSettings,
    texts: Sequence[Any],
    labels: Sequence[Label],
    fraction: float,
    validation: tuple[Sequence[Any], Sequence[Label]] | None,
) -> dict[str, TextHashes]:
    """The hashes of the texts by their use, which tell later commands what the model has seen.

    "training" are the texts that it was trained on. The others are "held out" if nothing depends on them, and
    "validation" if they decided which weights are kept, as for transformers.
    """
    held = held_out_rows(map(str, texts), labels, fraction, settings.seed) if fraction else [False] * len(texts)
    others = [text for text, is_held in zip(texts, held, strict=True) if is_held]
    return {
        "training": text_hashes(text for text, is_held in zip(texts, held, strict=True) if not is_held),
        "held out" if settings.is_linear else "validation": text_hashes(validation[0] if validation else others),
    }


def _small_classes(record: Mapping[str, Any]) -> list[str]:
    """A sentence if there are few examples, in all or of a class."""
    label, count = min(record["data"]["classes"].items(), key=lambda item: item[1])
    if count >= FEW_EXAMPLES:
        return []
    noun = "example" if count == 1 else "examples"
    return [
        f"the class {label!s} has {count} {noun} to train on, of {record['data']['rows']} in all: give at least "
        f"{FEW_EXAMPLES} of each class; figures about it have no meaning"
    ]


def _split(
    texts: Sequence[Any],
    labels: Sequence[Label],
    tokens: Sequence[Tokens] | None,
    settings: TrainingSettings,
    fraction: float,
    validation: tuple[Sequence[Any], Sequence[Label]] | None,
) -> tuple[ExampleSet, ExampleSet]:
    """The training set and the held-out set."""
    if len(texts) != len(labels):
        raise ValueError(f"labels must be one for each of the {len(texts)} texts, got {len(labels)}")
    unit = check_unit(settings.unit)
    plain = [label.item() if hasattr(label, "item") else label for label in labels]
    if tokens is None:
        split = SplitTexts(texts, unit)
        tokens = list(split) if settings.is_linear else split
    examples = ExampleSet(tokens, plain)
    held = None
    if validation is not None:
        if len(validation[0]) != len(validation[1]):
            raise ValueError(
                f"validation must hold one label for each of its {len(validation[0])} texts, got {len(validation[1])}"
            )
        held = ExampleSet([unit.split(text) for text in validation[0]], list(validation[1]))
    return split_held_out(examples, map(str, texts), fraction=fraction, seed=settings.seed, validation=held)


def _train_linear(
    settings: TrainingSettings, examples: ExampleSet, noise: Noise, report: Report
) -> tuple[BaseClassifier, History]:
    """The base classifier, and the loss of every step."""
    options = asdict(settings.linear) | {"class_weight": settings.class_weight}
    classifier = LinearClassifier(bits=options.pop("bits"), ngram=options.pop("ngram"))
    options |= {"unit": check_unit(settings.unit), "seed": settings.seed, "progress": report}
    classifier.fit(examples.tokens, examples.labels, noise=noise, **options)
    return classifier, _linear_history(classifier)


def _linear_history(classifier: LinearClassifier) -> History:
    """The loss of every step."""
    losses = classifier.training_["losses"] or [classifier.training_["loss"]]
    return [{"step": step, "train_loss": loss, "valid_accuracy": None} for step, loss in enumerate(losses, start=1)]


def retrained_record(record: Mapping[str, Any], base: BaseClassifier, noise: Noise) -> dict[str, Any]:
    """The record of a training whose base classifier was replaced by one that `retraining` trained under a noise.

    What was measured on held-out texts belongs to the earlier base classifier, and is dropped, with its warnings.
    """
    history = _linear_history(base) if isinstance(base, LinearClassifier) else record["history"]
    known = {**record, "noise": noise.to_dict(), "calibrated": True, "history": history, "held_out": None}
    return known | {"warnings": _small_classes(record)}


def retraining(record: Mapping[str, Any]) -> TrainAgain | None:
    """A function that trains a base classifier as the record of a training says, under another noise.

    None if there is no record, or if training takes more than seconds: linear models only are trained again.
    """
    known = record.get("settings") or {}
    if known.get("model") != "linear":
        return None
    options = {name: known[name] for name in asdict(LINEAR) if name in known}
    form = {name: options.pop(name) for name in ("bits", "ngram") if name in options}

    def train_again(noise: Noise, tokens: Sequence[Any], labels: Sequence[Any]) -> BaseClassifier:
        chosen = options | {"class_weight": known.get("class_weight"), "seed": known.get("seed", 0)}
        chosen["unit"] = check_unit(known.get("unit", "word"))
        return LinearClassifier(**form).fit(tokens, labels, noise=noise, **chosen)

    return train_again


def _held_out_check(
    model: SmoothedClassifier, held: ExampleSet, class_weight: str | None, *, quick: bool
) -> dict[str, Any] | None:
    """The answers of the smoothed classifier on held-out examples, as users see them: by the vote, and by class.

    Of many examples some are chosen by a hash of their content: the first ones of a file can all be of one class.
    """
    if not held.tokens:
        return None
    most, votes = (CHECKED, CHECK_VOTES) if quick else (CHECKED_SLOW, CHECK_VOTES_SLOW)
    chosen = sorted(sorted(range(len(held.tokens)), key=lambda place: content_key(held.tokens[place]))[:most])
    held = ExampleSet([held.tokens[place] for place in chosen], [held.labels[place] for place in chosen])
    certifier = model.certifier(n_select=votes, n_estimate=0, sampling="fixed", exact=False)
    inputs = (certifier.prepare_tokens(tokens, f"held-out example {n}") for n, tokens in enumerate(held.tokens))
    answers = {number: certifier.base.label(tally.label) for number, tally in certifier.votes(inputs)}
    labels = list(held.labels)
    given = [answers[number] for number in range(len(labels))]
    counts = Counter(labels)
    hits = Counter(label for answer, label in zip(given, labels, strict=True) if answer == label)
    advice = what_may_help(model.noise_, held.lengths, class_weight)
    return {
        "inputs": len(labels),
        "votes": votes,
        "accuracy": hits.total() / len(labels),
        "balanced_accuracy": float(np.mean([hits[label] / count for label, count in counts.items()])),
        "recall": {str(label): hits[label] / count for label, count in sorted(counts.items(), key=lambda i: str(i[0]))},
        "absent": [str(label) for label in model.classes_.tolist() if label not in counts],
        "warnings": answer_warnings(given, labels, held.lengths) or _missed_rare_classes(counts, hits, advice),
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
    note: Callable[[str], None],
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
