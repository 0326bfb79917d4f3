"""Defaults stand in one place: Python signatures and command lines take them from the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from inspect import Parameter, signature
from typing import Any

import pytest
from click.testing import CliRunner

import adaptdel as ad
from adaptdel.certification.sampling import SamplingPlan
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.cli.options import described, read_settings
from adaptdel.cli.train import train_command
from adaptdel.settings import (
    CERTIFICATION,
    LINEAR,
    NOT_SET,
    TRAINING,
    AdditiveTrainingSettings,
    LinearTrainingSettings,
    TrainingSettings,
    TransformerTrainingSettings,
    default_noise,
)
from adaptdel.training import TrainingJob, train


def defaults(function: Any) -> dict[str, Any]:
    parameters = signature(function).parameters.items()
    return {name: given.default for name, given in parameters if given.default is not Parameter.empty}


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        *((function, asdict(CERTIFICATION)) for function in (ad.SmoothedClassifier, SamplingPlan, ad.Certifier)),
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


def test_every_setting_of_a_training_is_described() -> None:
    shown = CliRunner().invoke(train_command, ["--list-settings"])
    assert shown.exit_code == 0
    for kind in (TrainingSettings, LinearTrainingSettings, TransformerTrainingSettings):
        for line, field in zip(
            described(kind, NOT_SET if kind is TransformerTrainingSettings else ()).splitlines(),
            [f for f in fields(kind) if f.name != "details" and (kind is TrainingSettings or f.name not in NOT_SET)],
            strict=True,
        ):
            assert line in shown.output
            name, _, text = line.strip().partition(": ")
            assert name == f"{field.name}={field.default}"
            assert len(text) > 5, name


def test_options_and_settings_are_the_same_fields() -> None:
    kinds = (TrainingSettings, TrainingJob, AdditiveTrainingSettings)
    names = {field.name for kind in kinds for field in fields(kind)}
    own = {"preset", "list_settings", "import", "config", "overwrite", "as_json"}
    assert {str(option.name) for option in train_command.params} - own <= names
    for pair in ("bits=12", "rates=0.8,0.9"):
        chosen = TrainingSettings.from_dict({"method": "adaptdel+", **read_settings([pair])})
        assert chosen != TRAINING
        assert TrainingSettings.from_dict({"method": "adaptdel+"}) != chosen


def test_the_default_noise() -> None:
    base = LinearClassifier(bits=8).fit([("a", "b"), ("c",)] * 10, [0, 1] * 10)
    expected = ad.Deletion(ad.LengthRate(p_min=0.9, k=23))
    assert ad.pipeline(base).model.noise == default_noise() == expected
    texts = ["one two three four five six seven eight nine ten eleven " * 4, "a b"] * 5
    model = ad.SmoothedClassifier(LinearClassifier(bits=8), copies=1, progress=False).fit(texts, [0, 1] * 5)
    assert model.noise_ == default_noise([44, 2] * 5) == ad.Deletion(ad.LengthRate(0.82, 4.1))


def test_validation_is_a_fraction_or_examples() -> None:
    texts = [f"{('good', 'bad')[number % 2]} film {number}" for number in range(80)]
    labels = [number % 2 for number in range(80)]
    quick: dict[str, Any] = {"bits": 8, "copies": 1, "progress": False}
    half = train(texts, labels, validation=0.5, **quick)
    assert half.training_["validation"] == 0.5
    assert 25 < half.training_["data"]["held_out"] < 55
    assert train(texts, labels, validation=(texts[:6], labels[:6]), **quick).training_["data"]["held_out"] == 6
    with pytest.raises(ValueError, match=r"^validation must hold one label for each of its 6 texts, got 5$"):
        train(texts, labels, validation=(texts[:6], labels[:5]), **quick)
