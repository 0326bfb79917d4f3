"""SmoothedClassifier, the entry point of the library: any sequence classifier, smoothed, with certificates."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from adaptdel.advice import few_kept
from adaptdel.certification.certificate import MOST_VOTES, Certificate, Rule
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import SamplingPlan, Tally
from adaptdel.classifiers.base import BaseClassifier, Prepared
from adaptdel.classifiers.callables import as_base
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.core.bounds import check_bound
from adaptdel.core.checks import FloatArray, check_fields, check_int, check_probability
from adaptdel.core.confidence import exact_shares
from adaptdel.core.noise import Noise, noise_from_dict
from adaptdel.core.radius import check_noise
from adaptdel.core.threat import Threat
from adaptdel.models.estimator import TextEstimator, input_name, label_array, listed
from adaptdel.models.model_files import CONFIG
from adaptdel.progress import reporter
from adaptdel.settings import CERTIFICATION, LINEAR, default_noise
from adaptdel.text.units import check_unit

_PLAIN = ("alpha", "n_select", "n_estimate", "sampling", "bound", "seed", "threshold", "copies")
_FIELDS = {"noise": "an object", "ops": "a list", "alpha": "a number", "threshold": "a number?"}
_FIELDS |= dict.fromkeys(("bound", "sampling"), "a text")
_FIELDS |= dict.fromkeys(("seed", "n_select", "n_estimate", "copies"), "an integer")


class SmoothedClassifier(TextEstimator):
    """A smoothed classifier: its answer is the majority vote of a base classifier over noisy copies of the input.

    Args:
        base: one of `adaptdel.classifiers`, an object with scikit-learn's ``predict(list of texts)``, or a callable of
            that shape that returns labels or scores; None for the embedded `LinearClassifier`.
        noise: `Deletion`, `Masking` or `NoNoise`; None for AdaptDel with rate and k from the lengths in `fit`: see
            `adaptdel.settings.default_noise`.
        alpha: the largest probability that a certificate is wrong.
        n_select: the largest number of votes that select the answer.
        n_estimate: the number of independent votes that bound its probability.
        sampling: "adaptive" stops when more votes would hardly raise the radius, uses the selection votes that were not
            needed for the bound, and enumerates the copies of short inputs; "fixed" is the paper's protocol.
        ops: what the attacker may do: "edit", or some of "del", "ins", "sub"; "edit" means "sub" under `Masking`, which
            certifies nothing else.
        bound: "tight" or "paper".
        unit: "word", "char", "byte", "chunk:SIZE", "labelled", or a pair of callables (split, join).
        seed: the seed of all noise.
        threshold: for two classes, answer the second class iff its probability exceeds this value.
        classes: the labels of a callable, in the order of its scores if it returns scores.
        copies: noisy copies of each example that `fit` trains on; for a transformer without training settings, the
            number of epochs, each of which draws a new copy.
        progress: True, False, "auto" (if standard error is a terminal) or a callable (done, total).

    After `fit`, ``base_`` is the base classifier, ``noise_`` the noise and ``classes_`` the labels.
    """

    kind = "smoothed"
    run_options: ClassVar[tuple[str, ...]] = (  # what a run may change
        "alpha", "ops", "bound", "sampling", "n_select", "n_estimate", "seed", "threshold",
    )  # fmt: skip

    def __init__(
        self,
        base: Any = None,
        noise: Noise | None = None,
        *,
        alpha: float = CERTIFICATION.alpha,
        n_select: int = CERTIFICATION.n_select,
        n_estimate: int = CERTIFICATION.n_estimate,
        sampling: str = CERTIFICATION.sampling,
        ops: str | Iterable[str] = CERTIFICATION.ops,
        bound: str = CERTIFICATION.bound,
        unit: Any = CERTIFICATION.unit,
        seed: int = CERTIFICATION.seed,
        threshold: float | None = CERTIFICATION.threshold,
        classes: Sequence[Any] | None = None,
        copies: int = LINEAR.copies,
        progress: Any = "auto",
    ) -> None:
        self.base = base
        self.noise = noise
        self.alpha = alpha
        self.n_select = n_select
        self.n_estimate = n_estimate
        self.sampling = sampling
        self.ops = ops
        self.bound = bound
        self.unit = unit
        self.seed = seed
        self.threshold = threshold
        self.classes = classes
        self.copies = copies
        self.progress = progress

    def fit(self, X: Sequence[Any], y: Sequence[Any]) -> SmoothedClassifier:
        """Train the base classifier on noisy copies; if no noise was given, k of AdaptDel comes from the lengths."""
        unit = check_unit(self.unit)
        tokens, labels = self.training_examples(X, y)
        lengths = [len(sequence) for sequence in tokens]
        self.noise_ = self.noise or default_noise(lengths)
        if sentence := few_kept(self.noise_, lengths, short_texts=False):
            warnings.warn(sentence, stacklevel=2)
        base = as_base(LinearClassifier() if self.base is None else self.base, self.classes)
        self.base_: BaseClassifier = base.unfitted().fit(
            tokens, labels, noise=self.noise_, unit=unit, copies=self.copies, seed=self.seed
        )
        self.classes_ = np.array(self.base_classifier().classes_)
        for record in ("training_", "calibration_", "protection_", "texts_"):  # of another model
            self.__dict__.pop(record, None)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        """Whether inputs can be classified: after `fit`, or with a base classifier and a noise."""
        return hasattr(self, "base_") or (self.base is not None and self.noise is not None)

    def predict(self, X: Sequence[Any]) -> Any:
        """The answer to every input: the class with the most of up to ``n_select`` votes."""
        certifier = self.certifier(n_estimate=0)
        return label_array([certifier.base.label(tally.label) for _, tally in self._votes(certifier, X, "predictions")])

    def predict_proba(self, X: Sequence[Any]) -> FloatArray:
        """The share of the ``n_select`` votes for every class; exact for short inputs."""
        certifier = self.certifier(n_estimate=0, sampling="fixed")
        results = self._votes(certifier, X, "predictions")
        shares = np.zeros((len(results), len(certifier.base.classes_ or [])))
        for row, (prepared, tally) in zip(shares, results, strict=True):
            if tally.exact is not None:
                noise = certifier.rule.noise.given(prepared.tokens)
                row[:] = list(map(float, exact_shares(tally.exact.tolist(), noise, len(prepared.tokens))))
            else:
                row[:] = tally.selection / tally.selection.sum()
        return shares

    def certify(self, X: Sequence[Any]) -> list[Certificate]:
        """A certificate for every input, in order.

        Where the classifier abstains, the certificate has the most frequent answer and a radius of −1: see
        `Certificate.abstained`.
        """
        check_int("n_estimate", self.n_estimate, least=1)
        certifier = self.certifier()
        results = self._votes(certifier, X, "certificates")
        return [certifier.certificate(prepared, tally) for prepared, tally in results]

    def certifier(self, **changes: Any) -> Certifier:
        """The engine that certifies for this model; ``changes`` replace sampling settings."""
        settings = {name: getattr(self, name) for name in ("alpha", "n_select", "n_estimate", "sampling", "seed")}
        exact = self.sampling == "adaptive"
        plan = SamplingPlan(self.rule(), **{**settings, "exact": exact, **changes})
        return Certifier(self.base_classifier(), plan, self.unit)

    def run_settings(self) -> dict[str, Any]:
        """What certificates depend on besides the base classifier and the unit, as the manifest of a run states it."""
        rule = self.rule()
        return {
            "noise": rule.noise.to_dict(),
            "threshold": rule.threshold,
            "ops": list(rule.ops),
            "bound": rule.bound,
            "alpha": self.alpha,
            "sampling": self.sampling,
            "votes": [self.n_select, self.n_estimate],
            "seed": self.seed,
        }

    def answer_plan(self) -> dict[str, Any]:
        """All that `predict` depends on besides the text and the seed, in plain values."""
        certifier = self.certifier(n_estimate=0)
        plan = certifier.plan
        return {
            "model": certifier.fingerprint,
            "unit": certifier.unit.description(),
            "noise": plan.rule.noise.to_dict(),
            "threshold": plan.rule.threshold,
            "sampling": plan.sampling,
            "n_select": plan.n_select,
            "exact": plan.exact,
        }

    def rule(self) -> Rule:
        """The noise, the threat model and the bound, checked."""
        noise = getattr(self, "noise_", None) or self.noise
        if noise is None:
            raise ValueError("noise must be given, or chosen by fit, before inputs can be classified; got None")
        ops = Threat(noise.certified_ops if isinstance(self.ops, str) and self.ops == "edit" else self.ops)
        check_noise(noise, ops)
        check_bound(self.bound)
        threshold = None if self.threshold is None else check_probability("threshold", self.threshold)
        return Rule(noise, ops.ops, self.bound, threshold)

    def base_classifier(self) -> BaseClassifier:
        """The base classifier: the fitted one, or the one that was given."""
        base: BaseClassifier | None = getattr(self, "base_", None)
        if base is None:
            if self.base is None:
                raise ValueError("base must be given, or fit called, before inputs can be classified; got None")
            base = as_base(self.base, self.classes)
        if base.classes_ is None:
            raise ValueError(f"base must be fitted, or its labels named by classes=[...]: got {base!r}")
        return base

    def to_settings(self) -> dict[str, Any]:
        """What a folder holds beside the base classifier, in plain values."""
        rule = self.rule()
        values = {name: getattr(self, name) for name in _PLAIN}
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
        return {"noise": rule.noise.to_dict(), "ops": list(rule.ops), **plain}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], base: BaseClassifier, unit: Any) -> Self:
        """The model from what `to_settings` returned, checked, and its base classifier."""
        check_fields(settings, _FIELDS)
        if "threshold" not in settings:  # may be null, but not missing
            raise ValueError("threshold is missing")
        plain = {name: settings[name] for name in _PLAIN}
        model = cls(base, noise_from_dict(settings["noise"]), ops=tuple(settings["ops"]), unit=unit, **plain)
        plan = SamplingPlan(model.rule(), model.alpha, model.n_select, model.n_estimate, model.sampling, model.seed)
        plan.rule.check_classes(base.classes_ or [])
        for name, least in (("n_select", 1), ("n_estimate", 0), ("copies", 1)):
            check_int(name, getattr(model, name), least=least, most=MOST_VOTES)
        model.base_, model.noise_, model.classes_ = base, plan.rule.noise, np.array(base.classes_)
        return model

    def _votes(self, certifier: Certifier, X: Sequence[Any], noun: str) -> list[tuple[Prepared, Tally]]:
        """The prepared inputs with their votes, in order; the first failure is raised."""
        texts, report = listed(X), reporter(self.progress, noun)
        prepared: list[Prepared] = []

        def inputs() -> Iterator[Prepared]:
            for number, (text, tokens) in enumerate(zip(texts, self.split(texts), strict=True)):
                prepared.append(certifier.prepare_tokens(tokens, input_name(number, text)))
                yield prepared[-1]

        done = None if report is None else lambda finished: report(finished, len(texts))
        tallies = dict(certifier.votes(inputs(), done=done))
        return [(prepared[number], tallies[number]) for number in range(len(texts))]


class CertifyingPipeline:
    """Called with a text or a list of texts, it returns dictionaries with label, score, radius and abstained."""

    def __init__(self, model: SmoothedClassifier) -> None:
        self.model = model

    def __repr__(self) -> str:
        return f"CertifyingPipeline({self.model!r})"

    def __call__(self, inputs: str | Iterable[str]) -> Any:
        """A dictionary for a text, a list of dictionaries for a list of texts."""
        single = isinstance(inputs, (str, bytes))
        certificates = self.model.certify([inputs] if single else list(inputs))
        answers = [
            {"label": c.label, "score": c.score, "radius": c.radius, "abstained": c.abstained} for c in certificates
        ]
        return answers[0] if single else answers


def pipeline(model: Any, *, noise: Noise | None = None, **settings: Any) -> CertifyingPipeline:
    """A pipeline for a smoothed classifier, its folder, a Hugging Face model's name or folder, or any base classifier.

    A model that is not smoothed yet gets the ``noise``, or `adaptdel.settings.default_noise`. One that was not trained
    on noisy copies may be inaccurate. ``settings`` are further arguments of `adaptdel.SmoothedClassifier`.
    """
    if isinstance(model, (str, Path)) and (Path(model) / CONFIG).exists():
        model = SmoothedClassifier.load(model)
    if isinstance(model, SmoothedClassifier):
        if noise is not None:
            raise ValueError(f"noise must be None for a model that is smoothed already, got {noise!r}")
        return CertifyingPipeline(copy(model).set_params(**settings))
    if isinstance(model, (str, Path)):
        from adaptdel.classifiers.transformers import TransformersClassifier

        model = TransformersClassifier(str(model))
    return CertifyingPipeline(SmoothedClassifier(model, noise or default_noise(), **settings))
