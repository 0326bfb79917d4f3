"""Defaults stand in one place: Python signatures and command lines take them from the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from inspect import Parameter, signature
from typing import Any

import pytest

import adaptdel as ad
from adaptdel.certification.votes import VotesPlan
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.cli.options import read_settings
from adaptdel.cli.train import train_command
from adaptdel.settings import (
    CERTIFICATION,
    LINEAR,
    TRAINING,
    AdditiveTrainingSettings,
    FilterSettings,
    TrainingSettings,
)
from adaptdel.training import TrainingJob, train


def defaults(function: Any) -> dict[str, Any]:
    parameters = signature(function).parameters.items()
    return {name: given.default for name, given in parameters if given.default is not Parameter.empty}


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        *((function, asdict(CERTIFICATION)) for function in (ad.SmoothedClassifier, VotesPlan, ad.Certifier)),
        *((function, asdict(CERTIFICATION)) for function in (ad.certified_radius, ad.pairwise_bounds)),
        (LinearClassifier, asdict(LINEAR)),
        (LinearClassifier.fit, asdict(LINEAR)),
    ],
    ids=lambda given: getattr(given, "__qualname__", ""),
)
def test_signatures_have_the_defaults_of_the_settings(function: Any, settings: Mapping[str, Any]) -> None:
    shared = {name: value for name, value in defaults(function).items() if name in settings}
    assert shared
    assert shared == {name: settings[name] for name in shared}


def test_options_and_settings_are_the_same_fields() -> None:
    kinds = (TrainingSettings, TrainingJob, AdditiveTrainingSettings, FilterSettings)
    names = {field.name for kind in kinds for field in fields(kind)}
    own = {"preset", "list_settings", "import", "config", "overwrite", "as_json"}
    assert {str(option.name) for option in train_command.params} - own <= names
    for pair in ("bits=12", "rates=0.8,0.9"):
        chosen = TrainingSettings.from_dict({"method": "adaptdel+", **read_settings([pair])})
        assert chosen != TRAINING
        assert TrainingSettings.from_dict({"method": "adaptdel+"}) != chosen


def test_validation_is_a_fraction_or_examples() -> None:
    texts = [f"{('good', 'bad')[number % 2]} film {number}" for number in range(80)]
    labels = [number % 2 for number in range(80)]
    quick: dict[str, Any] = {"bits": 8, "copies": 1, "progress": False}
    half = train(texts, labels, validation=0.5, **quick)
    assert (half.records.training or {})["validation"] == 0.5
    assert 25 < (half.records.training or {})["data"]["held_out"] < 55
    six = train(texts, labels, validation=(texts[:6], labels[:6]), **quick)
    assert (six.records.training or {})["data"]["held_out"] == 6
    with pytest.raises(ValueError, match=r"^validation: labels must be one for each of the 6 texts, got 5$"):
        train(texts, labels, validation=(texts[:6], labels[:5]), **quick)
