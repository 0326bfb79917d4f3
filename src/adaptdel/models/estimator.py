"""What the estimators share: folders, the Hugging Face Hub, and the conventions of scikit-learn."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from adaptdel.certification.certificate import Certificate
from adaptdel.certification.certifier import Certifier, Oracle
from adaptdel.certification.evidence import Plan
from adaptdel.classifiers.base import BaseClassifier, Prepared
from adaptdel.core.checks import BoolArray
from adaptdel.models.model_files import load_model, save_model
from adaptdel.progress import reporter
from adaptdel.text.units import Tokens, check_unit

if TYPE_CHECKING:
    from adaptdel.core.noise import Noise
    from adaptdel.settings import CalibrationSettings


@dataclass(frozen=True)
class Records:
    """What is known of a model besides its parameters, in plain values; each is None where there is nothing."""

    training: dict[str, Any] | None = None  # how it was trained
    calibration: dict[str, Any] | None = None  # how its rates were chosen
    protection: dict[str, Any] | None = None  # the proved rate of false positives, with the plan that it holds for
    texts: Mapping[str, npt.NDArray[np.uint64]] = field(default_factory=dict)  # sorted hashes of texts, by their use


class ClassScores(Protocol):
    """The score that a model of two classes gives to one of them, and the threshold above which it is the answer."""

    grid: tuple[float, float, float]  # the lowest threshold, the highest, and how far apart two are at least
    certified: int | None  # how many texts are certified to report radii; None for all

    def values(self, inputs: Sequence[Tokens]) -> list[int] | None:
        """The scores, if they are known as integers; None where only `exceed` tells."""

    def exceed(self, inputs: Sequence[Tokens], limit: float) -> BoolArray:
        """Which inputs have a score above ``limit``, shape (inputs,); these have one above any lower limit, too."""

    def set_threshold(self, limit: float) -> None:
        """Make the class the answer where its score exceeds ``limit``, and nowhere else."""


class TextEstimator:
    """A model of texts: a classifier, a unit and a plan. It is kept in a folder or on the Hugging Face Hub.

    A subclass names its ``kind``, and defines `plan`, `oracle`, `base_classifier` and `from_parts`.
    """

    kind: ClassVar[str]  # the name of this kind of model in folders
    run_options: ClassVar[tuple[str, ...]]  # constructor arguments that a run may change
    calibrates: ClassVar[str] = (
        ""  # what `adaptdel calibrate` chooses: the "rate" on data, a "clip" without, or nothing
    )
    unit: Any
    threshold: float | None
    progress: Any
    classes_: Any  # the labels
    records: Records = Records()

    @property
    def plan(self) -> Plan:
        """What evidence and radii depend on besides the text and the classifier, checked."""
        raise NotImplementedError

    @property
    def current_noise(self) -> Noise | None:
        """The noise of a model that has one, before or after it was fitted."""
        return None

    @property
    def protected(self) -> Any:
        """The class of two that the model protects; None if there is none, or what was proved is of other answers."""
        known, number = self.records.protection, self.plan.protected
        if known is not None and self.changed_plan() is None:
            return known["label"]
        return None if number is None else self.certifier().classes[number]

    def prediction_plan(self) -> Plan:
        """The plan of `predict`, which proves nothing."""
        return self.plan

    def oracle(self) -> Oracle:
        """The classifier that evidence is asked of."""
        raise NotImplementedError

    def base_classifier(self) -> BaseClassifier:
        """The base classifier, which the folder of the model holds."""
        raise NotImplementedError

    def class_scores(self, number: int) -> ClassScores:
        """What `adaptdel protect` asks, about the class of a number, 0 or 1."""
        raise ValueError(f"a model of the kind {self.kind!r} has no threshold that protects a class")

    def calibration_plan(self, settings: CalibrationSettings) -> Any:
        """The plan by which candidate noises are measured, of a model that `calibrates` its rate."""
        raise ValueError(f"a model of the kind {self.kind!r} has no rate to calibrate")

    def use_noise(self, noise: Noise, base: BaseClassifier | None = None) -> None:
        """Take a calibrated noise, and the base classifier if one was trained under it."""
        raise NotImplementedError

    def reaches(self) -> str:
        """What is known of the radii before any text is certified, in a sentence."""
        return ""

    def parameters(self) -> dict[str, Any]:
        """What a folder holds besides base classifier, unit and plan, in plain values."""
        return {}

    def card(self) -> list[str]:
        """Sections of the model card that this kind of model has, in Markdown."""
        return []

    @classmethod
    def from_parts(cls, base: Any, unit: Any, plan: Any, parameters: Mapping[str, Any]) -> Self:
        """The model from its base classifier, its unit, its plan and `parameters`, checked."""
        raise NotImplementedError

    def record(self, **changes: Any) -> None:
        """Replace some of the `records`."""
        self.records = replace(self.records, **changes)

    def certifier(self, plan: Plan | None = None) -> Certifier:
        """The engine that certifies for this model, by its own plan or another."""
        return Certifier(self.oracle(), self.plan if plan is None else plan, self.unit)

    def predict(self, X: Sequence[Any]) -> Any:
        """The label of every input."""
        certifier = self.certifier(self.prediction_plan())
        observed = self._observed(certifier, X, "predictions")
        labels = [certifier.classes[evidence.predicted(certifier.plan)] for _, evidence in observed]
        # Labels of several types keep them: NumPy would turn numbers into texts.
        return np.array(labels, dtype=object if len({type(label) for label in labels}) > 1 else None)

    def certify(self, X: Sequence[Any]) -> list[Certificate]:
        """A certificate for every input, in order."""
        certifier = self.certifier()
        return [certifier.certificate(*each) for each in self._observed(certifier, X, "certificates")]

    def _observed(self, certifier: Certifier, X: Sequence[Any], noun: str) -> list[tuple[Prepared, Any]]:
        """The prepared inputs with their evidence, in order; the first failure is raised."""
        texts, report = listed(X), reporter(self.progress, noun)
        names = (input_name(number, text) for number, text in enumerate(texts))
        prepared = list(certifier.prepared(zip(names, self.split(texts), strict=True)))
        done = None if report is None else lambda finished: report(finished, len(texts))
        evidence = dict(certifier.observed(prepared, done=done))
        return [(each, evidence[number]) for number, each in enumerate(prepared)]

    def split(self, X: Any) -> Iterator[Tokens]:
        """The tokens of each input; ValueError that names the input that cannot be split."""
        unit = check_unit(self.unit)
        for number, text in enumerate(listed(X)):
            try:
                yield unit.split(text)
            except ValueError as error:
                raise ValueError(f"{input_name(number, text)}: {error}") from None

    def training_examples(self, X: Any, y: Any) -> tuple[list[Tokens], list[Any]]:
        """The tokens and the label of each input."""
        tokens = list(self.split(X))
        if isinstance(y, (str, bytes)) or not isinstance(y, Iterable):
            raise ValueError(f"y must hold a label for each input, got {y!r:.60}")
        labels = np.asarray(y).tolist() if hasattr(y, "dtype") else list(y)
        if len(tokens) != len(labels):
            raise ValueError(f"y must be of the same length as X, {len(tokens)}, got {len(labels)} labels")
        if not tokens:
            raise ValueError("X must hold at least one input, got none")
        return tokens, labels

    def save(self, path: str | Path) -> None:
        """Write the model to a folder: safetensors, JSON and a model card."""
        save_model(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, **running: Any) -> Self:
        """Read a model that `save` wrote; nothing in the folder is executed.

        ``running`` says where and how a transformer runs: ``device``, ``dtype``, ``batch_tokens`` and ``compile`` of
        `TransformersClassifier`.
        """
        model = load_model(path, running)
        if not isinstance(model, cls):
            raise ValueError(f"{path}: holds a model of the kind {model.kind}: use {type(model).__name__}.load")
        return model

    def predictions(self) -> dict[str, Any]:
        """All that predictions depend on besides text and seed: figures about them hold while it is the same."""
        unit = check_unit(self.unit).description()
        return {"model": self.base_classifier().fingerprint(), "unit": unit} | self.prediction_plan().predictions()

    def changed_plan(self) -> str | None:
        """A sentence if the answers are no longer those whose rate of false positives was proved; else None."""
        known = self.records.protection
        if known is None or known["plan"] == (plan := self.predictions()):
            return None
        changed = [name for name in plan if plan[name] != known["plan"].get(name)]
        shown = ", ".join(f"{name} was {known['plan'].get(name)!r:.40} and is {plan[name]!r:.40}" for name in changed)
        return (
            f"the false-positive rate of {known['label']!s} was proved for other answers ({shown}): nothing is "
            "known about it here; run adaptdel protect on a model with these settings"
        )

    def push_to_hub(self, repo_id: str, *, private: bool | None = None, token: str | None = None) -> str:
        """Upload the folder that `save` writes to the Hugging Face Hub, and return its address.

        The folder holds no text, but hashes of the texts that trained the model. The repository ``repo_id`` is created
        if it does not exist. The token is that of `hf auth login` unless it is given.
        """
        hub = _hub()
        with TemporaryDirectory() as folder:
            self.save(Path(folder) / "model")
            hub.create_repo(repo_id, private=private, token=token, exist_ok=True)
            uploaded = hub.upload_folder(
                repo_id=repo_id,
                folder_path=Path(folder) / "model",
                delete_patterns="base/*",  # of an earlier model
                commit_message=f"Upload {type(self).__name__}",
                token=token,
            )
        return str(getattr(uploaded, "commit_url", uploaded))

    @classmethod
    def from_pretrained(cls, name: str | Path, *, revision: str | None = None, token: str | None = None) -> Self:
        """Read a model from a folder, or by "owner/name" from the Hugging Face Hub; nothing in it is executed."""
        if Path(name).exists():
            return cls.load(name)
        hub = _hub()
        try:
            folder = hub.snapshot_download(str(name), revision=revision, token=token)
        except (hub.errors.HfHubHTTPError, hub.errors.HFValidationError, OSError) as error:
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(f"{name}: neither a folder nor a model that can be downloaded: {reason[0]}") from None
        return cls.load(folder)

    def score(self, X: Sequence[Any], y: Sequence[Any], sample_weight: Any = None) -> float:
        """The accuracy of `predict`."""
        correct = [label == answer for label, answer in zip(y, self.predict(X), strict=True)]
        return float(np.average(correct, weights=sample_weight))

    # The conventions of scikit-learn, without its base classes: to import them takes longer than to load a model.

    _estimator_type = "classifier"

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        params = {name: value for name, value in self.get_params(deep=False).items() if name in defaults}
        shown = [f"{name}={value!r}" for name, value in params.items() if repr(value) != repr(defaults[name].default)]
        return f"{type(self).__name__}({', '.join(shown)})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor; with ``deep`` also those of an estimator among them, as in "base__C"."""
        params = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        inner = {name: value for name, value in params.items() if hasattr(value, "get_params") and deep}
        return params | {
            f"{name}__{part}": value
            for name, estimator in inner.items()
            if not isinstance(estimator, type)
            for part, value in estimator.get_params().items()
        }

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor."""
        for name, value in params.items():
            first, _, rest = name.partition("__")
            if name not in self.get_params():
                raise ValueError(f"{name!r} is not a parameter of {type(self).__name__}")
            if rest:
                getattr(self, first).set_params(**{rest: value})
            else:
                setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """scikit-learn's tags: a classifier of texts."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        inputs = InputTags(string=True, two_d_array=False)
        return Tags("classifier", TargetTags(required=True), None, ClassifierTags(), None, input_tags=inputs)


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise ImportError("the Hugging Face Hub needs huggingface_hub: pip install 'adaptdel[hub]'") from None
    return huggingface_hub


def listed(X: Any) -> list[Any]:
    """The inputs as a list; a single text is refused."""
    if isinstance(X, (str, bytes)):
        raise ValueError(f"X must be a list of inputs, got a single {type(X).__name__}: put it in a list")
    if isinstance(X, Mapping) or hasattr(X, "columns") or not isinstance(X, Iterable):
        raise ValueError(f"X must be a list of inputs, got {type(X).__name__}: give the texts, such as one column")
    return list(X)


def input_name(number: int, text: Any) -> str:
    """What messages call an input."""
    shown = repr(text[:60] if isinstance(text, (str, bytes)) else text)
    return f"input {number} ({shown if len(shown) < 80 else shown[:77] + '...'})"
