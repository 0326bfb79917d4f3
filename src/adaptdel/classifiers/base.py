"""The interface of base classifiers, which vote on the noisy copies of prepared inputs; their registry."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import BoolArray, IntArray, check_names
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
    checks_own_files: ClassVar[bool] = False
    """Whether `load` recognises changed files itself. If not, a saved model carries the SHA-256 of each file."""
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


class DistinctClassifier(BaseClassifier):
    """A base classifier that classifies each distinct copy of an input once.

    A subclass defines by which `keys` copies are compared, and classifies distinct copies (`answer`).

    Attributes:
        recheck: the number of copies at the beginning that are classified a second time, in other batches and another
            order; a different answer raises an `InconsistentAnswerError`. 0 disables the check.
    """

    recheck: int = RECHECKED
    _rechecked: int = 0
    _calls: int = 0

    @cached_property
    def _early(self) -> list[tuple[Prepared, Hashable, int]]:
        """Some of the first copies, with their answers."""
        return []

    def forget_answers(self) -> None:
        """Start the repeated classification of copies anew: the model has changed."""
        self.__dict__.pop("_early", None)
        self._rechecked = self._calls = 0

    @abstractmethod
    def keys(self, request: Request) -> list[Hashable]:
        """A hashable key for each copy; copies of an input with equal keys get the same answer."""

    @abstractmethod
    def answer(self, copies: Sequence[tuple[Prepared, Hashable]]) -> IntArray:
        """The class numbers of distinct copies, shape (copies,)."""

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        """Classify the copies whose answers are not cached, those of all inputs together."""
        keys = [self.keys(request) for request in requests]
        new: dict[tuple[int, Hashable], tuple[Prepared, Hashable]] = {}
        for request, row in zip(requests, keys, strict=True):
            known = request.prepared.answers
            for key, name in zip(row, map(_short, row), strict=True):
                if name not in known:
                    new.setdefault((id(known), name), (request.prepared, key))
        fresh = dict(zip(new, self._answered(list(new.values())).tolist(), strict=True)) if new else {}
        out = []
        for request, row in zip(requests, keys, strict=True):
            known = request.prepared.answers
            names = map(_short, row)
            out.append(np.array([known[n] if n in known else fresh[id(known), n] for n in names], dtype=np.int64))
        for (_, name), (prepared, _) in zip(new, new.values(), strict=True):
            if len(prepared.answers) < REMEMBERED:
                prepared.answers[name] = fresh[id(prepared.answers), name]
        return out

    def _answered(self, copies: Sequence[tuple[Prepared, Hashable]]) -> IntArray:
        """Call `answer` and recheck some answers; an error names the input that failed."""
        try:
            answers = self.answer(copies)
            self._recheck_some(copies, answers)
            return answers
        except (BaseClassifierError, InconsistentAnswerError):
            raise
        except Exception as error:
            culprit = self._culprit(copies)
            raise BaseClassifierError(
                f"the base classifier failed on {culprit}: {type(error).__name__}: {error}"
            ) from error

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
        for prepared, key, answer in chosen[: RECHECKED_LATER - len(self._early)]:
            self._early.append((Prepared(prepared.name, (), prepared.unit, prepared.masking), key, answer))

    def _compare(self, answered: Sequence[tuple[Prepared, Hashable, int]]) -> None:
        """Classify copies again, and raise if an answer differs."""
        again = self.answer([(prepared, key) for prepared, key, _ in answered]).tolist()
        for (prepared, key, answer), other in zip(answered, again, strict=True):
            if other != answer:
                shown = self.show(prepared, key)
                shown = shown if len(shown) <= 200 else shown[:197] + "..."
                raise InconsistentAnswerError(
                    f"the base classifier answered {self.label(answer)!r} and then {self.label(other)!r} to the same "
                    f"copy {shown} of {prepared.name}: its answer must depend on the copy alone, not on the other "
                    "copies, their order, earlier calls or chance, or no certificate holds"
                )

    def show(self, prepared: Prepared, key: Hashable) -> str:
        """A copy as it is shown in messages."""
        return repr(key)

    def _culprit(self, copies: Sequence[tuple[Prepared, Hashable]]) -> str:
        """The name of an input that fails, by bisection; of the first input if none fails alone."""
        while len(copies) > 1:
            half = copies[: len(copies) // 2]
            try:
                self.answer(half)
            except Exception:
                copies = half
            else:
                copies = copies[len(copies) // 2 :]
        return copies[0][0].name


def _short(key: Hashable) -> Hashable:
    """The key of the cache of answers: a long key is replaced by its hash to save memory."""
    if isinstance(key, str) and len(key) > LONG_KEY:
        key = key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes) and len(key) > LONG_KEY:
        return len(key), hashlib.blake2b(key, digest_size=32).digest()  # tagged: a short copy may be equal to a hash
    return key


def kept_tokens(request: Request) -> Iterator[list[Any]]:
    """The tokens of every copy; tokens that are not kept are left out, or replaced by masks under masking."""
    prepared = request.prepared
    tokens = np.fromiter(prepared.tokens, dtype=object, count=len(prepared.tokens))
    if prepared.masking:
        mask = prepared.unit.mask
        if mask is None:
            raise ValueError(f"noise must be a deletion for the unit {prepared.unit.kind!r}, which has no mask token")
        for row in request.kept:
            yield [token if keep else mask for token, keep in zip(prepared.tokens, row, strict=True)]
    else:
        for row in request.kept:
            yield tokens[row].tolist()


def check_labels(classes: Sequence[Any]) -> None:
    """Raise if two classes have the same label: its votes would be split, and the certificate could be wrong."""
    for place, label in enumerate(classes):
        if label in classes[:place]:
            raise ValueError(f"classes must be distinct labels, got {label!r} twice in {list(classes)!r}")


def class_numbers(answers: Any, classes: Sequence[Any], names: Sequence[str]) -> IntArray:
    """Class numbers from labels, shape (copies,), or from scores, shape (copies, classes).

    Args:
        answers: the labels or scores that the model returned.
        classes: the labels.
        names: for each copy the name of its input, for messages.
    """
    array = _as_array(answers)
    if array.ndim == 0 or len(array) != len(names):
        got = "a single value" if array.ndim == 0 else str(len(array))
        raise BaseClassifierError(
            f"the base classifier must return {len(names)} answers for {len(names)} copies, got {got} ({names[0]})"
        )
    if array.ndim == 1:
        numbers = {label: number for number, label in enumerate(classes)}
        return np.array([_number(label, numbers, name) for label, name in zip(array.tolist(), names, strict=True)])
    if array.ndim != 2 or array.dtype.kind not in "fiu" or array.shape[1] != len(classes):
        raise BaseClassifierError(
            f"the base classifier must return labels or a table of scores (copies by {len(classes)} classes), "
            f"got an array of shape {array.shape} and type {array.dtype} ({names[0]})"
        )
    return best_class(array, names.__getitem__)


def _as_array(answers: Any) -> npt.NDArray[Any]:
    """Answers as an array; a list of labels keeps their types."""
    if isinstance(answers, (list, tuple)) and not any(np.ndim(answer) for answer in answers[:1]):
        array = np.empty(len(answers), dtype=object)
        array[:] = answers
        return array
    try:
        return np.asarray(answers)
    except ValueError:
        return np.asarray(list(answers), dtype=object)


def best_class(scores: npt.NDArray[Any], describe: Callable[[int], str]) -> IntArray:
    """The class of the highest score in every row; NaN is an error that names its input."""
    wrong = np.isnan(scores).any(axis=1)
    if wrong.any():
        raise BaseClassifierError(f"the base classifier returned NaN on {describe(int(np.argmax(wrong)))}")
    return np.argmax(scores, axis=1).astype(np.int64)


def _number(label: Any, numbers: Mapping[Any, int], name: str) -> int:
    """The class number of a label."""
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, float) and label != label:
        raise BaseClassifierError(f"the base classifier returned NaN on {name}")
    try:
        return numbers[label]
    except (KeyError, TypeError):
        raise BaseClassifierError(f"the base classifier returned an unknown label {label!r} on {name}") from None
