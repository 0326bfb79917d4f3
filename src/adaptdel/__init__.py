"""adaptdel: certified robustness of sequence classifiers against edits.

A certificate states: no attacker who inserts, deletes or substitutes up to r tokens can change the answer to this
input. It holds with confidence 1 − alpha for a `SmoothedClassifier`, and with certainty for an `AdditiveClassifier`.
"""

from __future__ import annotations

import sys

if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] == __name__ and not sys.flags.safe_path:
    del sys.path[0]  # python -m adaptdel: the working directory, whose modules would replace those of libraries

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptdel.certification.certificate import Certificate
    from adaptdel.certification.certifier import Certifier
    from adaptdel.certification.scores import exact_certificate
    from adaptdel.classifiers.base import register_classifier
    from adaptdel.classifiers.transformer_training import train_on_noise
    from adaptdel.core.bounds import pairwise_bounds, register_bound
    from adaptdel.core.confidence import Looks, clopper_pearson
    from adaptdel.core.general import ContentDeletion, certify_general
    from adaptdel.core.masking import Masking
    from adaptdel.core.noise import Deletion, ExactOverlap, Noise, NoNoise, Overlap, noise_from_dict, register_noise
    from adaptdel.core.radius import certified_frontier, certified_radius, certified_top_k, least_probability
    from adaptdel.core.rates import (
        BinnedRate,
        FixedRate,
        InterpolatedRate,
        LengthRate,
        Rate,
        rate_from_dict,
        register_rate,
    )
    from adaptdel.core.rigorous import rigorous_radius
    from adaptdel.core.threat import Threat, log10_cardinality
    from adaptdel.models import load
    from adaptdel.models.additive import AdditiveClassifier
    from adaptdel.models.smoothed import SmoothedClassifier
    from adaptdel.report.figures import plot_certified_accuracy, plot_radius_against_length
    from adaptdel.runs.certify import evaluate
    from adaptdel.runs.storage import read_run

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # an application decides where messages go

__all__ = [
    "AdditiveClassifier",
    "BinnedRate",
    "Certificate",
    "Certifier",
    "ContentDeletion",
    "Deletion",
    "ExactOverlap",
    "FixedRate",
    "InterpolatedRate",
    "LengthRate",
    "Looks",
    "Masking",
    "NoNoise",
    "Noise",
    "Overlap",
    "Rate",
    "SmoothedClassifier",
    "Threat",
    "certified_frontier",
    "certified_radius",
    "certified_top_k",
    "certify_general",
    "clopper_pearson",
    "evaluate",
    "exact_certificate",
    "least_probability",
    "load",
    "log10_cardinality",
    "noise_from_dict",
    "pairwise_bounds",
    "plot_certified_accuracy",
    "plot_radius_against_length",
    "rate_from_dict",
    "read_run",
    "register_bound",
    "register_classifier",
    "register_noise",
    "register_rate",
    "rigorous_radius",
    "train_on_noise",
]

_MODULES = {
    "adaptdel.certification.certificate": "Certificate",
    "adaptdel.certification.certifier": "Certifier",
    "adaptdel.certification.scores": "exact_certificate",
    "adaptdel.classifiers.base": "register_classifier",
    "adaptdel.classifiers.transformer_training": "train_on_noise",
    "adaptdel.core.bounds": "pairwise_bounds register_bound",
    "adaptdel.core.confidence": "Looks clopper_pearson",
    "adaptdel.core.general": "ContentDeletion certify_general",
    "adaptdel.core.masking": "Masking",
    "adaptdel.core.noise": "Deletion ExactOverlap Noise NoNoise Overlap noise_from_dict register_noise",
    "adaptdel.core.radius": "certified_frontier certified_radius certified_top_k least_probability",
    "adaptdel.core.rates": "BinnedRate FixedRate InterpolatedRate LengthRate Rate rate_from_dict register_rate",
    "adaptdel.core.rigorous": "rigorous_radius",
    "adaptdel.core.threat": "Threat log10_cardinality",
    "adaptdel.models.additive": "AdditiveClassifier",
    "adaptdel.models": "load",
    "adaptdel.models.smoothed": "SmoothedClassifier",
    "adaptdel.report.figures": "plot_certified_accuracy plot_radius_against_length",
    "adaptdel.runs.certify": "evaluate",
    "adaptdel.runs.storage": "read_run",
}
_LATER = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import a name on first use: a program loads what it uses, and the command line starts at once."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value
