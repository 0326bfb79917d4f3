"""SmoothedClassifier, the entry point of the library: any sequence classifier, smoothed, with certificates."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from adaptdel.advice import few_kept
from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import CALIBRATE, VoteOracle
from adaptdel.certification.votes import AT_ONCE, EXACT_COPIES, MOST_VOTES, VotesPlan
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.classifiers.callables import as_base
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.core.checks import BoolArray, FloatArray, check_int, check_names
from adaptdel.core.noise import Noise, NoNoise
from adaptdel.core.threat import Threat, as_threat
from adaptdel.models.estimator import Records, TextEstimator
from adaptdel.models.model_files import MODELS
from adaptdel.settings import CERTIFICATION, LINEAR, CalibrationSettings, default_noise
from adaptdel.text.units import Tokens, check_unit

CERTIFIED = 100  # texts of a protected class that are certified to report radii, at most
LEAST_SHARE = 0.01  # of the votes that decide for a protected class, at least
_PLANNED = ("alpha", "n_select", "n_estimate", "sampling", "bound", "seed", "threshold")  # fields of the plan


@MODELS.add("smoothed")
class SmoothedClassifier(TextEstimator):
    """A smoothed classifier, whose prediction is the majority vote of a base classifier over noisy copies of the input.

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
        ops: what the attacker may do: "edit", some of "del", "ins", "sub", or a `Threat`; "edit" means "sub" under
            `Masking`, which certifies nothing else.
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

    calibrates = "rate"
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
        ops: str | Iterable[str] | Threat = CERTIFICATION.ops,
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
        self.records = Records()  # those of another model end here
        return self

    def __sklearn_is_fitted__(self) -> bool:
        """Whether inputs can be classified: after `fit`, or with a base classifier and a noise."""
        return hasattr(self, "base_") or (self.base is not None and self.noise is not None)

    @property
    def current_noise(self) -> Noise | None:
        """The noise of `fit`, or the one that was given; None if there is none yet."""
        return getattr(self, "noise_", None) or self.noise

    @property
    def plan(self) -> VotesPlan:
        """The noise, the votes and how radii follow, checked."""
        noise = self.current_noise
        if noise is None:
            raise ValueError("noise must be given, or chosen by fit, before inputs can be classified; got None")
        threat = as_threat(self.ops, noise.certified_ops)
        given = ((name, getattr(self, name)) for name in _PLANNED)  # of NumPy's types too, as from a grid search
        settings = {name: value.item() if isinstance(value, np.generic) else value for name, value in given}
        return VotesPlan(noise=noise, threat=threat, enumerates=self.sampling == "adaptive", **settings)

    def prediction_plan(self) -> VotesPlan:
        """The plan without estimation votes."""
        return replace(self.plan, n_estimate=0)

    def calibration_plan(self, settings: CalibrationSettings) -> VotesPlan:
        """The plan by which candidate noises are measured, on random streams of its own; its noise is a placeholder.

        The rates of the objective "balanced" are compared by the majority answer, whatever the threshold is.
        """
        noise, balanced = self.current_noise, settings.objective == "balanced"
        if noise is not None and not noise.calibratable:
            has_candidates = type(noise).calibration_candidates is not Noise.calibration_candidates
            if not (balanced and has_candidates and not noise.sees_tokens()):
                raise ValueError(
                    "model must have a deletion noise to be calibrated, or for the objective 'balanced' one that "
                    f"defines calibration_candidates, got {noise!r}"
                )
        if not hasattr(self, "base_") and self.base is None:
            raise ValueError("model must be fitted, or have a base classifier, to be calibrated; its base is None")
        return VotesPlan(
            noise=NoNoise(),
            threat=as_threat(self.ops),
            bound=settings.bound or self.bound,
            threshold=None if balanced or self.records.protection else self.threshold,  # a proved one is of one rate
            alpha=self.alpha if settings.alpha is None else settings.alpha,
            n_select=settings.n_select,
            n_estimate=settings.n_estimate,
            sampling="adaptive" if balanced else "fixed",
            enumerates=balanced,
            seed=settings.seed,
            phases=CALIBRATE,
        )

    def use_noise(self, noise: Noise, base: BaseClassifier | None = None) -> None:
        """Take a calibrated noise, and the base classifier if one was trained under it.

        A threshold that was proved for another noise is removed.
        """
        self.noise = self.noise_ = noise
        if self.records.protection is not None:
            self.threshold = None
            self.record(protection=None)
        if base is not None:
            self.base = self.base_ = base

    def class_scores(self, number: int) -> VoteShares:
        """The share of votes for a class."""
        return VoteShares(self, number, (LEAST_SHARE, float(np.nextafter(1.0, 0.0)), 0.5 / self.n_select))

    def oracle(self) -> VoteOracle:
        """The base classifier, which votes."""
        return VoteOracle(self.base_classifier())

    def predict_proba(self, X: Sequence[Any]) -> FloatArray:
        """The share of the ``n_select`` votes for every class; exact for short inputs."""
        certifier = self.certifier(replace(self.prediction_plan(), sampling="fixed"))
        observed = self._observed(certifier, X, "predictions")
        shares = [evidence.class_scores(certifier.plan) for _, evidence in observed]
        return np.array(shares, dtype=np.float64).reshape(len(shares), len(certifier.classes))

    def certify(self, X: Sequence[Any]) -> list[Certificate]:
        """A certificate for every input, in order.

        Where the classifier abstains, the certificate has the most frequent answer and a radius of −1: see
        `Certificate.abstained`.
        """
        check_int("n_estimate", self.n_estimate, least=1)
        return super().certify(X)

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

    def parameters(self) -> dict[str, Any]:
        """What a folder holds besides base classifier, unit and plan."""
        return {"copies": int(self.copies)}

    @classmethod
    def from_parts(cls, base: BaseClassifier, unit: Any, plan: VotesPlan, parameters: Mapping[str, Any]) -> Self:
        """The model from its base classifier, its unit, its plan and `parameters`, checked."""
        check_names("parameters", parameters, ("copies",))
        copies = check_int("copies", parameters["copies"], least=1, most=MOST_VOTES)
        settings = {name: getattr(plan, name) for name in _PLANNED}
        model = cls(base, plan.noise, ops=plan.threat, unit=unit, copies=copies, **settings)
        model.base_, model.noise_, model.classes_ = base, plan.noise, np.array(base.classes_)
        model.certifier()  # checks the classes
        return model


@dataclass
class VoteShares:
    """The share of votes for a class, of as many votes as it takes to answer: see `ClassScores`.

    With adaptive sampling, the votes on a text end as soon as its share is clearly on one side of the threshold.
    Whatever ends them at a threshold with this class as the answer does so at every lower one, too. Copies of short
    texts may be enumerated: ``predict`` does so at once or not at all, ``certify`` also after some votes. Where the
    answers could differ, a text exceeds a threshold if either does.
    """

    model: SmoothedClassifier
    number: int  # of the class, 0 or 1
    grid: tuple[float, float, float]  # thresholds are at least half a vote apart
    certified: int | None = CERTIFIED

    def values(self, inputs: Sequence[Tokens]) -> None:
        """Unknown: there are as many votes as the answer takes."""

    def exceed(self, inputs: Sequence[Tokens], limit: float) -> BoolArray:
        """Which inputs have a share above ``limit``, by the answers of the model itself."""
        asked = copy(self.model)
        replace(self, model=asked).set_threshold(limit)
        plan = asked.prediction_plan()
        exceeds = self._answers(asked.certifier(plan), inputs)
        if plan.enumerates:
            least = min(AT_ONCE, plan.n_select)
            short = [n for n, each in enumerate(inputs) if least < plan.noise.choices(len(each)) <= EXACT_COPIES]
            enumerated = asked.certifier(replace(plan, at_once=EXACT_COPIES, n_estimate=EXACT_COPIES))
            exceeds[short] |= self._answers(enumerated, [inputs[n] for n in short])
        return exceeds

    def _answers(self, certifier: Certifier, inputs: Sequence[Tokens]) -> BoolArray:
        prepared = certifier.prepared((f"text {number}", tokens) for number, tokens in enumerate(inputs))
        answers = {number: votes.predicted(certifier.plan) for number, votes in certifier.observed(prepared)}
        return np.array([answers[number] == self.number for number in range(len(inputs))], dtype=np.bool_)

    def set_threshold(self, limit: float) -> None:
        """The threshold of a model is that of class 1."""
        self.model.threshold = limit if self.number == 1 else 1.0 - limit
