"""The interface of base classifiers, which vote on the noisy copies of prepared inputs; their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import BoolArray, IntArray, check_names
from adaptdel.core.noise import Noise
from adaptdel.core.registry import Registry
from adaptdel.text.units import Tokens, Unit


class BaseClassifierError(RuntimeError):
    """The base classifier failed on an input, which the message names."""


class InconsistentAnswerError(ValueError):
    """The base classifier gave the same copy two answers. No certificate would hold, so nothing more is certified."""


@dataclass
class Prepared:
    """An input, prepared once for all its noisy copies.

    Attributes:
        name: the name of the input in messages.
        tokens: its tokens.
        unit: joins tokens.
        masking: whether tokens that are not kept are replaced by a mask instead of being deleted.
        data: what the classifier has computed for the input, such as token ids.
        answers: cached class numbers of distinct copies.
    """

    name: str
    tokens: Tokens
    unit: Unit
    masking: bool = False
    data: Any = None
    answers: dict[Hashable, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """Noisy copies of one input: a row of ``kept`` for each copy, True where a token is kept."""

    prepared: Prepared
    kept: BoolArray


class BaseClassifier(ABC):
    """A classifier of token sequences.

    A subclass classifies copies (`votes`). It may also be trained (`fit`) and saved (`kind`, `save`, `load`): see
    `register_classifier`.

    Attributes:
        kind: the name under which the class is registered; "" if its instances cannot be saved.
        classes_: the labels, in the order of the class numbers; None before the classifier is fitted.
        dtype: the precision of a transformer; None for other models.
    """

    kind: ClassVar[str] = ""
    running_options: ClassVar[tuple[str, ...]] = ()
    """What may differ from run to run, such as the device: further options of `load`."""

    classes_: list[Any] | None = None
    dtype: str | None = None

    def prepare(self, name: str, tokens: Tokens, unit: Unit, *, masking: bool = False) -> Prepared:
        """Prepare an input; called once for each input."""
        return Prepared(name, tokens, unit, masking)

    @abstractmethod
    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        """The class number of every copy: for each request an array of shape (copies,).

        The answer to a copy must depend on that copy only, not on the other copies or their order.
        """

    def copy_scores(self, requests: Sequence[Request]) -> Sequence[npt.NDArray[Any]] | None:
        """The scores of the copies of each request, shape (copies, classes); None if the classifier only votes.

        The vote is the class of the highest score, and the lowest class number on a tie. Attacks use scores to compare
        texts that get the same votes.
        """
        return None

    def label(self, number: int) -> Any:
        """The label of a class number."""
        return (self.classes_ or [])[number]

    def fingerprint(self) -> str:
        """A hash of the model, stored in every certificate; "" if it has none."""
        return ""

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `load` that restore the same classifier, in plain values."""
        return {}

    def fingerprint_with(self, options: Mapping[str, Any]) -> str:
        """The fingerprint that the model has under other `options`."""
        return self.fingerprint()

    def running(self, options: Mapping[str, Any]) -> BaseClassifier:
        """The classifier under other `running_options`; see `TransformersClassifier`."""
        self.check_running(options)
        return self

    @classmethod
    def check_running(cls, options: Mapping[str, Any]) -> None:
        """Raise ValueError for an option that says nothing about how this kind of model runs."""
        if strange := [name for name in options if name not in cls.running_options]:
            shown = cls.kind or cls.__name__
            raise ValueError(f"{strange[0]} has no meaning for a model of the kind {shown}: leave it out")

    def unfitted(self) -> BaseClassifier:
        """An untrained classifier with the same parameters; the object itself if `fit` continues its training."""
        return self

    def fit(
        self, tokens: Sequence[Tokens], labels: Sequence[Any], *, noise: Noise, unit: Unit, copies: int, seed: int
    ) -> BaseClassifier:
        """Train on noisy copies of the examples, in place, and return the classifier.

        Args:
            tokens: the tokens of every example.
            labels: the label of every example.
            noise: applied to the examples.
            unit: joins tokens.
            copies: noisy copies of each example to train on.
            seed: of all random numbers.
        """
        raise ValueError(f"base must be trainable for fit, got {self!r}: use it as it is, without fit")

    def save(self, folder: Path) -> None:
        """Write the classifier to a new folder; `load` reads it."""
        raise ValueError(
            f"base must be a classifier that can be saved, got {self!r}: a function cannot be stored safely; use a "
            "scikit-learn, linear, transformers or ONNX model, or a class of your own with register_classifier"
        )

    @classmethod
    def load(cls, folder: Path, **options: Any) -> Self:
        """Read what `save` wrote, without executing anything from the folder; ``options`` are those of `options`."""
        raise ValueError(f"{folder}: a {cls.__name__} cannot be loaded from a folder")

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """Raise ValueError unless the options from a file can be given to `load`."""
        check_names("options", options, ())


def _check_class(cls: Any) -> None:
    """Raise unless a class can be saved and loaded."""
    for name in ("votes", "fingerprint", "save", "load"):
        own, default = (getattr(owner, name, None) for owner in (cls, BaseClassifier))
        if getattr(own, "__func__", own) is getattr(default, "__func__", default):
            raise ValueError(f"{cls.__name__} must define {name} to be registered")


CLASSIFIERS: Registry[type[BaseClassifier]] = Registry(
    "classifier",
    _check_class,
    {
        "additive": "adaptdel.classifiers.bounded",
        "additive_pipeline": "adaptdel.classifiers.bounded",
        "linear": "adaptdel.classifiers.linear",
        "onnx": "adaptdel.classifiers.onnx",
        "sklearn": "adaptdel.classifiers.callables",
        "transformers": "adaptdel.classifiers.transformers",
    },
)
Registered = TypeVar("Registered", bound=type[BaseClassifier])


def register_classifier(kind: str) -> Callable[[Registered], Registered]:
    """A class decorator that makes a base classifier loadable under a name.

    The class defines ``votes``, ``fingerprint``, ``save`` and ``load``. A saved model holds the name, never code: the
    module of the class has to be imported before the model is loaded, by ``--import`` or as a plug-in.

    Args:
        kind: the name; that of another class is refused.
    """
    return CLASSIFIERS.add(kind)


def kept_tokens(request: Request) -> Iterator[list[Any]]:
    """The tokens of every copy; tokens that are not kept are left out, or replaced by masks under masking."""
    prepared = request.prepared
    if prepared.masking:
        check_mask(prepared.unit)
        for row in request.kept:
            yield [token if keep else prepared.unit.mask for token, keep in zip(prepared.tokens, row, strict=True)]
        return
    tokens = np.fromiter(prepared.tokens, dtype=object, count=len(prepared.tokens))
    for row in request.kept:
        yield tokens[row].tolist()


def example_stream(seed: int, number: int) -> np.random.Generator:
    """The random generator of an example in training, which does not depend on the other examples."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, number], dtype=np.uint64)))


def drawn_copies(
    tokens: Sequence[Tokens], noise: Noise, unit: Unit, *, copies: int, seed: int
) -> Iterator[tuple[Any, ...]]:
    """The tokens of noisy copies of each example; the copies of an example follow each other."""
    for number, example in enumerate(tokens):
        prepared = Prepared(f"example {number}", example, unit, noise.masks_tokens)
        for kept in noise.given(example).chunks(len(example), copies, example_stream(seed, number)):
            yield from map(tuple, kept_tokens(Request(prepared, kept)))


def check_mask(unit: Unit) -> None:
    """Raise for a unit that has no mask token."""
    if unit.mask is None:
        raise ValueError(f"noise must be a deletion for the unit {unit.kind!r}, which has no mask token")


def check_labels(classes: Sequence[Any]) -> None:
    """Raise if two classes have the same label: its votes would be split, and the certificate could be wrong."""
    for place, label in enumerate(classes):
        if label in classes[:place]:
            raise ValueError(f"classes must be distinct labels, got {label!r} twice in {list(classes)!r}")
