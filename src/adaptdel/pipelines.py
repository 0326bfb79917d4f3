"""A door in the manner of transformers: text in, label, score and radius out."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from pathlib import Path
from typing import Any

from adaptdel.noise import Deletion, Noise
from adaptdel.rates import FixedRate
from adaptdel.smoothed import SmoothedClassifier


class CertifyingPipeline:
    """Call it with a text, or a list of texts, for dictionaries of label, score, radius and whether it abstained."""

    def __init__(self, model: SmoothedClassifier) -> None:
        self.model = model

    def __repr__(self) -> str:
        return f"CertifyingPipeline({self.model!r})"

    def __call__(self, inputs: str | Iterable[str]) -> Any:
        """One dictionary for a text, a list of them for several."""
        single = isinstance(inputs, (str, bytes))
        certificates = self.model.certify([inputs] if single else list(inputs))
        answers = [
            {"label": c.label, "score": c.score, "radius": c.radius, "abstained": c.abstained} for c in certificates
        ]
        return answers[0] if single else answers


def pipeline(model: Any, *, noise: Noise | None = None, **settings: Any) -> CertifyingPipeline:
    """A pipeline for a smoothed classifier, its folder, a Hugging Face model's name or folder, or any base classifier.

    Args:
        model: what to call.
        noise: the noise for a model that is not smoothed yet; CERT-ED's 90% deletion if left out. Accuracy under noise
            needs a model that was trained under it.
        settings: further arguments of `adaptdel.SmoothedClassifier`.
    """
    if isinstance(model, (str, Path)) and (Path(model) / "adaptdel.json").exists():
        model = SmoothedClassifier.load(model)
    if isinstance(model, SmoothedClassifier):
        if noise is not None:
            raise ValueError(f"noise must be None for a model that is smoothed already, got {noise!r}")
        return CertifyingPipeline(copy(model).set_params(**settings))
    if isinstance(model, (str, Path)):
        from adaptdel.classifiers.transformers import TransformersClassifier

        model = TransformersClassifier(str(model))
    return CertifyingPipeline(SmoothedClassifier(model, noise or Deletion(FixedRate(0.9)), **settings))
