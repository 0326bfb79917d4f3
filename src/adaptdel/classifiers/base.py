"""The interface of base classifiers, which vote on the noisy copies of prepared inputs; their registry.

`DistinctClassifier` classifies each distinct copy of an input once, and some copies twice as a check.
"""

from __future__ import annotations

import hashlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.noise import Noise
from adaptdel.core.registry import Registry
from adaptdel.text.units import Tokens, Unit

REMEMBERED = 2**16  # distinct copies of an input whose answers are cached
LONG_KEY = 256  # longer keys are cached by their hash
RECHECKED = 64  # of the first copies are classified again
RECHECKED_SHARE, RECHECKED_LEAST = 8, 16  # every 8th copy of a call, and at least this number
RECHECKED_ALONE = 2
RECHECKED_LATER = 8  # of the very first copies are classified again in later calls


class BaseClassifierError(RuntimeError):
    """The base classifier failed on an input, which the message names."""


class InconsistentAnswerError(ValueError):
    """The base classifier gave the same copy two answers. No certificate would hold, so nothing more is certified."""


@dataclass
class Prepared:
    """An input, prepared once for all its noisy copies."""

    name: str  # of the input, in messages
    tokens: Tokens
    unit: Unit  # joins tokens
    masking: bool = False  # whether tokens that are not kept are replaced by a mask instead of being deleted
    data: Any = None  # what the classifier has computed for the input
    answers: dict[Hashable, int] = field(default_factory=dict)  # cached class numbers of distinct copies


@dataclass(frozen=True)
class Request:
    """Noisy copies of one input: a row of ``kept`` for each copy, True where a token is kept."""

    prepared: Prepared
    kept: BoolArray


class BaseClassifier(ABC):
    """A classifier of token sequences.

    A subclass classifies copies (`votes`). It may also be trained (`fit`) and saved (`kind`, `save`, `load`): see
    `register_classifier`.
    """

    kind: ClassVar[str] = ""  # the name under which the class is registered; "" if its instances cannot be saved
    stored_options: ClassVar[tuple[str, ...]] = ()  # names of `options`: a file may give no others to `load`
    running_options: ClassVar[tuple[str, ...]] = ()  # options of `load` that may differ from run to run: the device
    classes_: list[Any] | None = None  # the labels, in the order of the class numbers; None before `fit`
    dtype: str | None = None  # the precision of a transformer; None for other models

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

    def fingerprint(self) -> str:
        """A hash of the model, stored in every certificate; "" if it has none."""
        return ""

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `load` that restore the same classifier: plain values of the `stored_options`."""
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
        """Train on noisy copies of the examples (``copies`` of each), in place, and return the classifier."""
        raise ValueError(f"base must be trainable for fit, got {self!r}: use it as it is, without fit")

    def save(self, folder: Path) -> None:
        """Write the classifier to a new folder; `load` reads it."""
        raise ValueError(
            f"base must be a classifier that can be saved, got {self!r}: a function cannot be stored safely; use "
            "another model, or a class of your own with register_classifier"
        )

    @classmethod
    def load(cls, folder: Path, **options: Any) -> Self:
        """Read what `save` wrote, without executing anything from the folder; ``options`` are checked here."""
        raise ValueError(f"{folder}: a {cls.__name__} cannot be loaded from a folder")


class DistinctClassifier(BaseClassifier):
    """A base classifier that classifies each distinct copy of an input once.

    A subclass defines by which `keys` copies are compared, and classifies distinct copies (`answer`). Some copies are
    classified a second time, in other batches and another order; a different answer is an `InconsistentAnswerError`.
    """

    recheck: int = RECHECKED  # copies at the beginning that are classified again; 0 disables the check
    _rechecked: int = 0
    _calls: int = 0
    _early: tuple[tuple[Prepared, Hashable, int], ...] = ()  # some of the first copies, with their answers

    @abstractmethod
    def keys(self, request: Request) -> list[Hashable]:
        """A hashable key for each copy; copies of an input with equal keys get the same answer."""

    @abstractmethod
    def answer(self, copies: Sequence[tuple[Prepared, Hashable]]) -> IntArray:
        """The class numbers of distinct copies, shape (copies,)."""

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        """Classify the copies whose answers are not cached, those of all inputs together.

        An error names the input that failed, or the first of several.
        """
        rows = [[(_short(key), key) for key in self.keys(request)] for request in requests]
        new: dict[tuple[int, Hashable], tuple[Prepared, Hashable]] = {}
        for request, row in zip(requests, rows, strict=True):
            known = request.prepared.answers
            new |= {(id(known), name): (request.prepared, key) for name, key in row if name not in known}
        fresh: dict[tuple[int, Hashable], int] = {}
        if copies := list(new.values()):
            try:
                answers = self.answer(copies)
                self._recheck_some(copies, answers)
            except (BaseClassifierError, InconsistentAnswerError):
                raise
            except Exception as error:
                raise BaseClassifierError(
                    f"the base classifier failed on {copies[0][0].name}: {type(error).__name__}: {error}"
                ) from error
            fresh = dict(zip(new, answers.tolist(), strict=True))
        out = []
        for request, row in zip(requests, rows, strict=True):
            known = request.prepared.answers
            numbers = [known[name] if name in known else fresh[id(known), name] for name, _ in row]
            out.append(np.array(numbers, dtype=np.int64))
        for (place, name), (prepared, _) in new.items():
            if len(prepared.answers) < REMEMBERED:
                prepared.answers[name] = fresh[place, name]
        return out

    def _recheck_some(self, copies: Sequence[tuple[Prepared, Hashable]], answers: IntArray) -> None:
        """Classify some of the first copies again: together in another order, and a few of them alone.

        A few of the very first are classified again in later calls, too, at increasing intervals.
        """
        self._calls += 1
        size = min(self.recheck - self._rechecked, max(RECHECKED_LEAST, len(copies) // RECHECKED_SHARE), len(copies))
        chosen: list[tuple[Prepared, Hashable, int]] = []
        if size > 0:
            rng = np.random.Generator(np.random.Philox(self._rechecked))
            chosen = [(*copies[place], int(answers[place])) for place in rng.permutation(len(copies))[:size]]
            self._rechecked += size
            self._compare(chosen)
            for copy in chosen[:RECHECKED_ALONE] if size > 1 else ():
                self._compare([copy])
        if self._early and self._calls & (self._calls - 1) == 0:  # a power of two
            self._compare(self._early)
        left = RECHECKED_LATER - len(self._early)
        self._early += tuple((replace(prepared, answers={}), key, answer) for prepared, key, answer in chosen[:left])

    def _compare(self, answered: Sequence[tuple[Prepared, Hashable, int]]) -> None:
        """Classify copies again, and raise if an answer differs."""
        again = self.answer([(prepared, key) for prepared, key, _ in answered]).tolist()
        for (prepared, key, answer), other in zip(answered, again, strict=True):
            if other != answer:
                shown, labels = self.show(prepared, key), self.classes_ or []
                shown = shown if len(shown) <= 200 else shown[:197] + "..."
                raise InconsistentAnswerError(
                    f"the base classifier answered {labels[answer]!r} and then {labels[other]!r} to the same "
                    f"copy {shown} of {prepared.name}: its answer must depend on the copy alone, not on the other "
                    "copies, their order, earlier calls or chance, or no certificate holds"
                )

    def show(self, prepared: Prepared, key: Hashable) -> str:
        """A copy as it is shown in messages."""
        return repr(key)


def _short(key: Hashable) -> Hashable:
    """The key of the cache of answers: a long key is replaced by its hash to save memory."""
    if isinstance(key, str) and len(key) > LONG_KEY:
        key = key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes) and len(key) > LONG_KEY:
        return len(key), hashlib.blake2b(key, digest_size=32).digest()  # tagged: a short copy may be equal to a hash
    return key


def best_class(scores: npt.NDArray[Any], names: Sequence[str]) -> IntArray:
    """The class of the highest score in every row; NaN is an error that names its input."""
    wrong = np.isnan(scores).any(axis=1)
    if wrong.any():
        raise BaseClassifierError(f"the base classifier returned NaN on {names[int(np.argmax(wrong))]}")
    return np.argmax(scores, axis=1).astype(np.int64)


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
    """A class decorator that makes a base classifier loadable under a name; a name in use is refused.

    The class defines ``votes``, ``fingerprint``, ``save`` and ``load``. A saved model holds the name, never code: the
    module of the class has to be imported before the model is loaded, by ``--import`` or as a plug-in.
    """
    return CLASSIFIERS.add(kind)


def is_installed(code: Any) -> bool:
    """Whether a class or a function belongs to Python or to an installed package, whose version tells what it does."""
    name = code.__module__ or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "-packages" in file or name.partition(".")[0] in ("adaptdel", *sys.stdlib_module_names)


def stated(parts: Iterable[Any]) -> str | None:
    """What the user states of the code behind some objects: their ``fingerprint``; None if some code is not known.

    The code of installed packages counts by its name. That of the user may change without a trace, so he states a text
    in the attribute ``fingerprint`` of an object, such as "v3", and another one when its answers change.
    """
    texts = set()
    for part in parts:
        text = getattr(part, "fingerprint", None)
        if isinstance(text, str) and text:
            texts.add(text)
        elif not is_installed(type(part)):
            return None
    return " ".join(sorted(texts))


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


def stable_repr(base: BaseClassifier) -> str:
    """The representation of a base classifier without addresses of objects, which differ from run to run."""
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", repr(base))


def check_labels(classes: Sequence[Any]) -> None:
    """Raise if two classes have the same label: its votes would be split, and the certificate could be wrong.

    Control characters are refused as well: labels are shown in terminals.
    """
    for place, label in enumerate(classes):
        if re.search(r"[\x00-\x1f\x7f-\x9f]", str(label)):
            raise ValueError(f"classes must hold no control characters, got {label!r:.60}")
        if label in classes[:place]:
            raise ValueError(f"classes must be distinct labels, got {label!r} twice in {list(classes)!r}")
