"""Every default is in `adaptdel.settings`: Python signatures, command line options and YAML fields agree with it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import adaptdel as ad
from adaptdel.classifiers.linear import LinearClassifier

Mismatch = tuple[str, str, Any, Any]


def settings() -> ModuleType:
    """The module in use, which may be the altered one."""
    return import_module("adaptdel.settings")


def defaults(function: Any) -> dict[str, Any]:
    parameters = signature(function).parameters.items()
    return {name: given.default for name, given in parameters if given.default is not Parameter.empty}


def command(name: str) -> click.Command:
    found: click.Command = getattr(import_module(f"adaptdel.cli.{name}"), f"{name}_command")
    return found


def options(name: str) -> dict[str, Any]:
    """The defaults of a command's options, by the name of the Python argument."""
    return {str(option.name): option.default for option in command(name).params if isinstance(option, click.Option)}


def help_texts(name: str) -> dict[str, str]:
    return {str(option.name): option.help or "" for option in command(name).params if isinstance(option, click.Option)}


def compared() -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """(where, the defaults there, the defaults in the settings) for every place that has defaults."""
    s = settings()
    certification, calibration, data = (asdict(values) for values in (s.CERTIFICATION, s.CALIBRATION, s.DATA))
    linear, training = asdict(s.LINEAR), s.TRAINING

    def some(values: Mapping[str, Any], *names: str, **renamed: Any) -> dict[str, Any]:
        return {name: values[name] for name in names} | renamed

    smoothed = import_module("adaptdel.models.smoothed").SmoothedClassifier
    yield "SmoothedClassifier", defaults(smoothed), certification | {"copies": linear["copies"]}
    sampling = import_module("adaptdel.certification.sampling").SamplingPlan
    yield "SamplingPlan", defaults(sampling), some(certification, "alpha", "n_select", "n_estimate", "sampling", "seed")
    rule = import_module("adaptdel.certification.certificate").Rule
    yield "Rule", defaults(rule), some(certification, "bound", "threshold", "k")
    yield "Certifier", defaults(ad.Certifier), some(certification, "unit")
    usual = {"alpha": import_module("adaptdel.certification.verify").USUAL_ALPHA}
    yield "verify", usual, some(certification, "alpha")
    planned = some(certification, "alpha", "ops", trials=certification["n_estimate"])
    yield "plan", defaults(import_module("adaptdel.calibration.planner").plan), planned
    yield "adaptdel plan", options("plan"), some(certification, "alpha")

    without_on = {name: value for name, value in calibration.items() if name != "on"}
    calibrating = import_module("adaptdel.calibration.calibration")  # `calibrate` takes the fields of the settings
    yield "calibrate", defaults(calibrating.CalibrationSettings), without_on
    folders = import_module("adaptdel.calibration.folders")
    yield "calibrate_folder", defaults(folders.calibrate_folder), some(calibration, "on")
    votes = {"votes": f"{calibration['n_select']},{calibration['n_estimate']}"}
    scalar = {name: value for name, value in calibration.items() if not name.startswith("n_")}
    yield "adaptdel calibrate", options("calibrate"), scalar | votes

    columns = {"text_column": data["text"], "label_column": data["label"]}
    for name in ("calibrate", "certify"):  # which take the columns of the training, if the model has them
        shown = {column: help_texts(name)[column].partition("[default: as in training, or ")[2] for column in columns}
        yield f"adaptdel {name} --help", shown, {column: f"{value}]" for column, value in columns.items()}
        yield f"adaptdel {name}", options(name), dict.fromkeys(columns) | {"encoding": data["encoding"]}
    yield "adaptdel certify", options("certify"), {"id_column": data["ids"]}
    reading = import_module("adaptdel.text.data")
    yield "read_rows", defaults(reading.read_rows), data
    yield "read_examples", defaults(reading.read_examples), data
    yield "Source", defaults(import_module("adaptdel.runs.inputs").Source), data
    job = import_module("adaptdel.training.jobs").TrainingJob
    yield "TrainingJob", defaults(job), some(data, "text", "label", "encoding")

    yield "LinearClassifier", defaults(LinearClassifier), some(linear, "features", "bits")
    trained = some(linear, "loss", "copies", "l2", "iterations", seed=training.seed)
    yield "LinearClassifier.fit", defaults(LinearClassifier.fit), trained
    sklearn = import_module("adaptdel.classifiers.callables").SklearnClassifier
    yield "SklearnClassifier.fit", defaults(sklearn.fit), {"copies": linear["copies"], "seed": certification["seed"]}
    embedding = import_module("adaptdel.classifiers.embedding").EmbeddingClassifier
    yield "EmbeddingClassifier", defaults(embedding), asdict(s.EMBEDDING_MODEL)
    yield "EmbeddingClassifier.settings", asdict(embedding().settings), asdict(s.EMBEDDING)
    transformers = import_module("adaptdel.classifiers.transformers").TransformersClassifier
    yield "TransformersClassifier", defaults(transformers), {"dtype": s.DTYPE, "backend": s.BACKEND}
    fitted = {name: getattr(training, name) for name in ("unit", "seed", "validation")}
    yield "TransformersClassifier.fit", defaults(transformers.fit), fitted
    methods = import_module("adaptdel.training.training")
    yield "method_noises", defaults(methods.method_noises), {"rates": s.METHOD.rates}

    demo = import_module("adaptdel.demo")
    yield "run_demo", defaults(demo.run_demo), asdict(demo.DEMO)
    yield "adaptdel demo", options("demo"), asdict(demo.DEMO)


def of_train() -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """``adaptdel train`` has no defaults itself: it shows those of the settings. The same for YAML."""
    s = settings()
    chosen = options("train")
    names = [field.name for field in fields(s.TrainingSettings)]
    yield "adaptdel train", {name: chosen[name] for name in names}, dict.fromkeys(names)
    texts = help_texts("train")
    columns = {"text": s.DATA.text, "label": s.DATA.label, "encoding": s.DATA.encoding}
    values_of = {name: s.default_of(name) for name in names if name not in WITHOUT_DEFAULT}
    shown = columns | {name: value for name, value in values_of.items() if value is not None}
    ends = {name: texts[name].partition("[default: ")[2].removesuffix("]") for name in shown}
    of_embedding = {**asdict(s.EMBEDDING), "bits": s.EMBEDDING_MODEL.bits, "dtype": s.EMBEDDING_MODEL.precision}
    shared = {*asdict(s.LINEAR), *asdict(s.TRANSFORMER), "dtype"} & set(of_embedding)
    more = {name: f"; embedding: {written(of_embedding[name])}" for name in shared & set(names)}
    yield "adaptdel train --help", ends, {name: written(value) + more.get(name, "") for name, value in shown.items()}
    from_yaml = import_module("adaptdel.training.jobs").TrainingJob.from_dict
    job = {"data": "x", "out": "y"}
    transformer = {**asdict(s.TRANSFORMER), "dtype": s.DTYPE}
    for model, method, values in (("linear", "adaptdel+", asdict(s.LINEAR)), ("bert", "freelb", transformer)):
        effective = from_yaml({**job, "model": model, "method": method}).settings.effective()
        yield f"YAML {model}", effective, values | {"validation": s.TRAINING.validation, "unit": s.TRAINING.unit}
    network = {**asdict(s.EMBEDDING), "hidden": list(s.EMBEDDING.hidden), "validation": s.TRAINING.validation}
    of_model = {name: getattr(s.EMBEDDING_MODEL, name) for name in ("on_unknown", "min_count", "bits", "networks")}
    effective = from_yaml({**job, "model": "embedding"}).settings.effective()
    yield "YAML embedding", effective, {**network, **of_model, "dtype": s.EMBEDDING_MODEL.precision}
    effective = from_yaml({**job, "method": "adaptdel+"}).settings.effective()
    yield "YAML", effective, {"rate": s.METHOD.rate, "rates": list(s.METHOD.rates)}


WITHOUT_DEFAULT = ("class_weight", "max_minutes", "protect", "max_false_positives")


def written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def of_certify() -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """``adaptdel certify`` takes the settings of the model; its help shows those of a new one."""
    s = settings().CERTIFICATION
    texts = help_texts("certify")
    shown = {name: getattr(s, name) for name in ("alpha", "sampling", "bound", "seed")}
    shown["votes"] = f"{s.n_select},{s.n_estimate}"
    ends = {name: texts[name].partition("[default: the model's, ")[2].removesuffix("]") for name in shown}
    yield "adaptdel certify --help", ends, {name: str(value) for name, value in shown.items()}
    chosen = options("certify")
    yield "adaptdel certify", {name: chosen[name] for name in shown}, dict.fromkeys(shown)


def mismatches() -> list[Mismatch]:
    places = [*compared(), *of_train(), *of_certify()]
    return [
        (where, name, present.get(name, "nothing"), expected)
        for where, present, values in places
        for name, expected in values.items()
        if present.get(name, "nothing") != expected
    ]


def test_defaults_agree_everywhere() -> None:
    assert mismatches() == []


def test_a_changed_default_changes_everywhere() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.altered_settings"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count, wrong = json.loads(done.stdout)
    assert count >= 45
    assert wrong == []


@pytest.mark.parametrize(
    "function",
    [
        ad.certified_radius, ad.certified_top_k, ad.certified_frontier, ad.certify_general, ad.least_probability,
        ad.log10_cardinality, ad.pairwise_bounds, ad.rigorous_radius,
    ],
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_the_core_has_the_same_defaults(function: Any) -> None:
    """The core is below the settings, and cannot take its defaults from there."""
    certification = asdict(settings().CERTIFICATION)
    shared = {name: value for name, value in defaults(function).items() if name in certification}
    assert shared.items() <= certification.items()
    assert shared


def test_the_default_noise() -> None:
    from adaptdel.settings import default_noise

    base = LinearClassifier(bits=8).fit([("a", "b"), ("c",)] * 10, [0, 1] * 10)
    expected = ad.Deletion(ad.LengthRate(p_min=0.9, k=23))
    assert ad.pipeline(base).model.noise == default_noise() == expected
    texts = ["one two three four five six seven eight nine ten eleven " * 4, "a b"] * 5
    model = ad.SmoothedClassifier(LinearClassifier(bits=8), copies=1, progress=False).fit(texts, [0, 1] * 5)
    assert model.noise_ == default_noise([44, 2] * 5) == ad.Deletion(ad.LengthRate(0.82, 4.1))


def test_validation_is_a_fraction_or_examples() -> None:
    from adaptdel.training import train

    texts = [f"{('good', 'bad')[number % 2]} film {number}" for number in range(80)]
    labels = [number % 2 for number in range(80)]
    quick: dict[str, Any] = {"bits": 8, "copies": 1, "progress": False}
    half = train(texts, labels, validation=0.5, **quick)
    assert half.training_["validation"] == 0.5
    assert 25 < half.training_["data"]["held_out"] < 55
    assert train(texts, labels, validation=(texts[:6], labels[:6]), **quick).training_["data"]["held_out"] == 6
    with pytest.raises(ValueError, match=r"^validation must hold one label for each of its 6 texts, got 5$"):
        train(texts, labels, validation=(texts[:6], labels[:5]), **quick)
