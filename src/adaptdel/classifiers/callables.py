"""Base classifiers that are called with joined copies: Python functions, and scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import numpy as np

from adaptdel.classifiers.base import BaseClassifier, Prepared, Request, check_labels, kept_tokens, register_classifier
from adaptdel.classifiers.distinct import RECHECKED, DistinctClassifier, class_numbers
from adaptdel.classifiers.fingerprint import fingerprint
from adaptdel.core.checks import IntArray, check_int, check_names, token_key
from adaptdel.core.noise import Noise, NoNoise
from adaptdel.files import replacing
from adaptdel.settings import CERTIFICATION, LINEAR
from adaptdel.text.units import UNITS, Tokens, Unit

ESTIMATOR = "estimator.skops"
UNSAFE = "use parts of scikit-learn, NumPy and SciPy only, or register a class of your own with register_classifier"


class TokenCopy:
    """A copy as its tokens. Two copies of an input are equal if their tokens have equal keys (`token_key`).

    Args:
        tokens: the tokens.
        places: for each token, the position of the first equal token in the input, as bytes.
    """

    __slots__ = ("places", "tokens")

    def __init__(self, tokens: list[Any], places: bytes) -> None:
        self.tokens, self.places = tokens, places

    def __hash__(self) -> int:
        return hash(self.places)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenCopy) and self.places == other.places

    def __repr__(self) -> str:
        return repr(self.tokens)


def token_copies(request: Request) -> list[Hashable]:
    """The copies of an input as `TokenCopy`, for tokens of any type."""
    first: dict[Hashable, int] = {}
    keys = map(token_key, request.prepared.tokens)
    places = np.array([first.setdefault(key, place) for place, key in enumerate(keys)], dtype=np.int64)
    rows = (np.where(row, places, -1) if request.prepared.masking else places[row] for row in request.kept)
    return [TokenCopy(tokens, row.tobytes()) for tokens, row in zip(kept_tokens(request), rows, strict=True)]


class CallableClassifier(DistinctClassifier):
    """A function that maps a list of joined copies to labels, or to scores of shape (copies, classes).

    Args:
        function: called with a list of texts (or of what the unit joins).
        classes: the labels, in the order of the scores.
        batch_size: the largest number of copies per call.
        recheck: the number of copies at the beginning that are classified again, in other batches and another order;
            a different answer is an error. 0 disables the check.
    """

    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        classes: Sequence[Any],
        *,
        batch_size: int = 1024,
        recheck: int = RECHECKED,
    ) -> None:
        self.function = function
        self.batch_size = check_int("batch_size", batch_size, least=1)
        self.recheck = check_int("recheck", recheck)
        self.set_classes(classes)

    def set_classes(self, classes: Sequence[Any] | None) -> None:
        """Number the labels in this order; None if they are not known before `fit`."""
        self.classes_ = None if classes is None else list(classes)
        check_labels(self.classes_ or [])

    def __repr__(self) -> str:
        return f"CallableClassifier({self.function!r}, classes={self.classes_!r})"

    def fingerprint(self) -> str:
        """A hash of the function's code, constants, closure and state; "" if its state cannot be seen."""
        return fingerprint(self.function)

    def keys(self, request: Request) -> list[Hashable]:
        """The joined copies; for a unit of the user, whose joins may be anything, the kept tokens."""
        unit = request.prepared.unit
        if type(unit) not in UNITS.values():
            return token_copies(request)
        return [unit.join(tokens) for tokens in kept_tokens(request)]

    def answer(self, copies: Sequence[tuple[Prepared, Hashable]]) -> IntArray:
        """Call the function on batches of copies."""
        parts = []
        for start in range(0, len(copies), self.batch_size):
            batch = copies[start : start + self.batch_size]
            texts = [p.unit.join(list(key.tokens)) if isinstance(key, TokenCopy) else key for p, key in batch]
            parts.append(class_numbers(self.function(texts), self.classes_ or [], [p.name for p, _ in batch]))
        return np.concatenate(parts)


@register_classifier("sklearn")
class SklearnClassifier(CallableClassifier):
    """A scikit-learn estimator or pipeline whose ``predict`` takes a list of joined copies.

    Args:
        estimator: the estimator.
        classes: the labels, for an object with ``predict`` but without ``classes_``.
        batch_size: the largest number of copies per call of ``predict``.
        recheck: see `CallableClassifier`.
    """

    def __init__(
        self,
        estimator: Any,
        classes: Sequence[Any] | None = None,
        *,
        batch_size: int = 4096,
        recheck: int = RECHECKED,
    ) -> None:
        super().__init__(estimator.predict, classes or (), batch_size=batch_size, recheck=recheck)
        self._set_estimator(estimator, classes)

    def _set_estimator(self, estimator: Any, classes: Sequence[Any] | None) -> None:
        self.estimator, self.function = estimator, estimator.predict
        fitted = getattr(estimator, "classes_", None)
        self.set_classes(classes if fitted is None else np.asarray(fitted).tolist())

    def __repr__(self) -> str:
        return f"SklearnClassifier({self.estimator!r})"

    def unfitted(self) -> SklearnClassifier:
        """A fresh copy of the estimator."""
        try:
            from sklearn.base import clone

            estimator = clone(self.estimator)
        except (ImportError, TypeError):
            estimator = deepcopy(self.estimator)
        return SklearnClassifier(estimator, batch_size=self.batch_size, recheck=self.recheck)

    def fit(
        self,
        tokens: Sequence[Tokens],
        labels: Sequence[Any],
        *,
        noise: Noise | None,
        unit: Unit,
        copies: int = LINEAR.copies,
        seed: int = CERTIFICATION.seed,
    ) -> SklearnClassifier:
        """Fit the estimator on ``copies`` noisy copies of every example, joined."""
        texts, targets = noisy_texts(
            tokens, labels, noise or NoNoise(), unit, check_int("copies", copies, least=1), seed
        )
        self.estimator.fit(texts, targets)
        self._set_estimator(self.estimator, None)
        return self

    def fingerprint(self) -> str:
        """A hash of the estimator's parameters, fitted values and functions."""
        return fingerprint(self.estimator)

    def options(self) -> dict[str, Any]:
        """The batch size, the number of rechecked copies, and classes that the estimator does not know itself."""
        classes = None if hasattr(self.estimator, "classes_") else self.classes_
        return {"classes": classes, "batch_size": self.batch_size, "recheck": self.recheck}

    def save(self, folder: Path) -> None:
        """Write the estimator as ``estimator.skops``, which holds no code, unlike a pickle."""
        skops = skops_io()
        try:
            data = skops.dumps(self.estimator)
            untrusted = skops.get_untrusted_types(data=data)
        except Exception as error:  # whatever the state of an estimator raises
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(f"base cannot be saved by skops: {reason}: {UNSAFE}") from None
        if untrusted:
            raise ValueError(f"base holds {', '.join(untrusted[:3])}, which skops does not load safely: {UNSAFE}")
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / ESTIMATOR) as file:
            file.write(data)

    @classmethod
    def load(cls, folder: Path, **options: Any) -> Self:
        """Read what `save` wrote. Types outside scikit-learn, NumPy and SciPy are refused, not loaded."""
        skops = skops_io()
        path = Path(folder) / ESTIMATOR
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from None
        untrusted = skops.get_untrusted_types(data=data)
        if untrusted:
            raise ValueError(f"{path}: holds {', '.join(untrusted[:3])}, which is not trusted: {UNSAFE}")
        return cls(skops.loads(data, trusted=[]), **options)

    @classmethod
    def check_options(cls, options: Mapping[str, Any]) -> None:
        """The options are arguments of the class."""
        check_names("options", options, (), ("classes", "batch_size", "recheck"))


def skops_io() -> Any:
    """skops.io, or an error that names the extra."""
    try:
        import skops.io
    except ImportError as error:
        raise ImportError("saving a scikit-learn model needs skops: pip install 'adaptdel[sklearn]'") from error
    return skops.io


def noisy_texts(
    tokens: Sequence[Tokens], labels: Sequence[Any], noise: Noise, unit: Unit, copies: int, seed: int
) -> tuple[list[Any], list[Any]]:
    """``copies`` noisy copies of every example, joined; every example has its own random stream."""
    texts, targets = [], []
    for number, (example, label) in enumerate(zip(tokens, labels, strict=True)):
        rng = np.random.Generator(np.random.Philox(key=[seed, number]))
        prepared = Prepared(f"example {number}", example, unit, noise.masks_tokens)
        count = copies if noise.changes_inputs else 1
        rows = noise.given(example).sample(len(example), count, rng)
        texts += [unit.join(kept) for kept in kept_tokens(Request(prepared, rows))]
        targets += [label] * count
    return texts, targets


def as_base(base: Any, classes: Sequence[Any] | None = None) -> BaseClassifier:
    """Wrap an estimator with ``predict`` or a callable as a base classifier; a base classifier is returned as it is."""
    if isinstance(base, BaseClassifier):
        return base
    if hasattr(base, "predict"):
        return SklearnClassifier(base, classes)
    if callable(base):
        if classes is None:
            raise ValueError("classes must name the labels of a function: classes=[...], in the order of its scores")
        return CallableClassifier(base, classes)
    raise ValueError(
        f"base must be a classifier of adaptdel.classifiers, an object with predict(texts) or a callable, got {base!r}"
    )
