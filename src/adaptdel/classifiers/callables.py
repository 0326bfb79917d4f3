"""Base classifiers that are called with joined copies: Python functions, and scikit-learn estimators."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from pathlib import Path
from pickle import PicklingError
from types import FunctionType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.base import (
    RECHECKED,
    BaseClassifier,
    BaseClassifierError,
    DistinctClassifier,
    Prepared,
    Request,
    best_class,
    check_labels,
    check_mask,
    drawn_copies,
    is_installed,
    register_classifier,
)
from adaptdel.core.checks import IntArray, check_int, token_key
from adaptdel.core.noise import Noise, NoNoise
from adaptdel.files import replacing
from adaptdel.settings import CERTIFICATION, LINEAR
from adaptdel.text.units import Tokens, Unit

ESTIMATOR = "estimator.skops"
VOLATILE = ("_stop_words_id", "_sklearn_version")  # a memory address; the version of the library
UNSAFE = "use parts of scikit-learn, NumPy and SciPy only, or register a class of your own with register_classifier"


class CallableClassifier(DistinctClassifier):
    """A function that maps a list of joined copies to labels, or to scores of shape (copies, classes).

    Args:
        function: called with a list of texts (or of what the unit joins).
        classes: the labels, in the order of the scores.
        batch_size: the largest number of copies per call.
        recheck: see `DistinctClassifier`.
        fingerprint: a string that you change when the answers of the function change, such as "v3"; by default, that of
            its attribute ``fingerprint``. Without one, runs cannot be resumed.
    """

    def __init__(
        self,
        function: Callable[[list[Any]], Any],
        classes: Sequence[Any],
        *,
        batch_size: int = 1024,
        recheck: int = RECHECKED,
        fingerprint: str = "",
    ) -> None:
        self.function = function
        self.stated = fingerprint or getattr(function, "fingerprint", "")
        self.batch_size = check_int("batch_size", batch_size, least=1)
        self.recheck = check_int("recheck", recheck)
        self.classes_ = list(classes)
        check_labels(self.classes_)

    def __repr__(self) -> str:
        return f"CallableClassifier({self.function!r}, classes={self.classes_!r})"

    def fingerprint(self) -> str:
        """A hash of what is stated; "" if nothing is."""
        return hashlib.sha256(self.stated.encode()).hexdigest() if isinstance(self.stated, str) and self.stated else ""

    def prepare(self, name: str, tokens: Tokens, unit: Unit, *, masking: bool = False) -> Prepared:
        """Number each token by the first that equals it: what a unit joins may be anything, also not comparable."""
        if masking:
            check_mask(unit)
        first: dict[Hashable, int] = {}
        numbers = (first.setdefault(token_key(token), position) for position, token in enumerate(tokens))
        data = (
            np.fromiter(numbers, dtype=np.int32, count=len(tokens)),
            np.fromiter((*tokens, unit.mask), dtype=object, count=len(tokens) + 1),  # the mask has the number −1
        )
        return Prepared(name, tokens, unit, masking, data)

    def keys(self, request: Request) -> list[Hashable]:
        """The numbers of the tokens of each copy, as bytes; −1 is a mask."""
        (numbers, _), masking = request.prepared.data, request.prepared.masking
        return [(np.where(row, numbers, np.int32(-1)) if masking else numbers[row]).tobytes() for row in request.kept]

    def show(self, prepared: Prepared, key: Hashable) -> str:
        """A copy as it is shown in messages."""
        return repr(self._joined(prepared, key))

    def _joined(self, prepared: Prepared, key: Any) -> Any:
        return prepared.unit.join(prepared.data[1][np.frombuffer(key, dtype=np.int32)].tolist())

    def answer(self, copies: Sequence[tuple[Prepared, Hashable]]) -> IntArray:
        """Call the function on batches of copies."""
        parts = []
        for start in range(0, len(copies), self.batch_size):
            batch = copies[start : start + self.batch_size]
            answers = self.function([self._joined(prepared, key) for prepared, key in batch])
            parts.append(class_numbers(answers, self.classes_ or [], [prepared.name for prepared, _ in batch]))
        return np.concatenate(parts)


@register_classifier("sklearn")
class SklearnClassifier(CallableClassifier):
    """A scikit-learn estimator or pipeline, or any object, whose ``predict`` takes a list of joined copies.

    ``classes`` are the labels, for an object without ``classes_``.
    """

    stored_options = ("classes",)

    def __init__(self, estimator: Any, classes: Sequence[Any] | None = None) -> None:
        self.estimator, fitted = estimator, getattr(estimator, "classes_", None)
        known = classes if fitted is None else np.asarray(fitted).tolist()
        stated = getattr(estimator, "fingerprint", "")
        super().__init__(estimator.predict, known or (), batch_size=4096, fingerprint=stated)
        if known is None:  # before `fit`
            self.classes_ = None

    def __repr__(self) -> str:
        return f"SklearnClassifier({self.estimator!r})"

    def unfitted(self) -> SklearnClassifier:
        """A fresh copy of the estimator."""
        try:
            from sklearn.base import clone

            estimator = clone(self.estimator)
        except (ImportError, TypeError):
            estimator = deepcopy(self.estimator)
        return SklearnClassifier(estimator, **self.options())

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
        noise = noise or NoNoise()
        copies = check_int("copies", copies, least=1) if noise.changes_inputs else 1
        texts = [unit.join(copy) for copy in drawn_copies(tokens, noise, unit, copies=copies, seed=seed)]
        self.estimator.fit(texts, [label for label in labels for _ in range(copies)])
        SklearnClassifier.__init__(self, self.estimator, self.classes_)
        return self

    def fingerprint(self) -> str:
        """A hash of the estimator's parameters and fitted values; of what is stated, or "", for code of the user."""
        return super().fingerprint() or state_hash(self.estimator)

    def options(self) -> dict[str, Any]:
        """Classes that the estimator does not know itself."""
        return {"classes": None if hasattr(self.estimator, "classes_") else self.classes_}

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
        data = path.read_bytes()
        untrusted = skops.get_untrusted_types(data=data)
        if untrusted:
            raise ValueError(f"{path}: holds {', '.join(untrusted[:3])}, which is not trusted: {UNSAFE}")
        return cls(skops.loads(data, trusted=[]), **options)


def state_hash(estimator: Any) -> str:
    """A hash of a fitted estimator, the same in another process; "" if it holds functions or classes of the user."""
    try:
        from joblib.hashing import NumpyHasher
    except ImportError:  # without scikit-learn
        return ""

    class Hasher(NumpyHasher):  # type: ignore[misc]
        fast = True  # an object that is there twice is hashed twice: whether it is one object does not matter

        def save(self, obj: Any) -> None:
            if isinstance(obj, (type, FunctionType)) and not is_installed(obj):
                raise PicklingError
            if type(obj) is dict:
                obj = {name: obj[name] for name in obj if name not in VOLATILE}
            elif type(obj) is np.ndarray and not obj.dtype.hasobject:  # whatever its order in memory
                obj = obj.dtype.str, obj.shape, obj.tobytes()
            super().save(obj)

    try:
        return str(Hasher("sha256").hash(estimator))
    except Exception:  # whatever an object raises that is taken apart
        return ""


def skops_io() -> Any:
    """skops.io, or an error that names the extra."""
    try:
        import skops.io
    except ImportError as error:
        raise ImportError("saving a scikit-learn model needs skops: pip install 'adaptdel[sklearn]'") from error
    return skops.io


def as_base(base: Any, classes: Sequence[Any] | None = None) -> BaseClassifier:
    """Wrap an estimator with ``predict`` or a callable as a base classifier; a base classifier is returned as it is."""
    if not isinstance(base, BaseClassifier):
        if hasattr(base, "predict"):
            base = SklearnClassifier(base, classes)
        elif not callable(base):
            raise ValueError(
                "base must be a classifier of adaptdel.classifiers, an object with predict(texts) or a callable, got "
                f"{base!r}"
            )
        elif classes is None:
            raise ValueError("classes must name the labels of a function: classes=[...], in the order of its scores")
        else:
            base = CallableClassifier(base, classes)
    known: list[Any] | None = base.classes_
    if classes is not None and known is not None and list(classes) != known:
        raise ValueError(f"classes must be those of the base classifier, {known!r:.60}, or None, got {classes!r:.60}")
    return base


def class_numbers(answers: Any, classes: Sequence[Any], names: Sequence[str]) -> IntArray:
    """Class numbers from labels, shape (copies,), or from scores, shape (copies, classes); ``names`` are of inputs."""
    if isinstance(answers, (list, tuple)) and not any(np.ndim(answer) for answer in answers[:1]):
        array: npt.NDArray[Any] = np.empty(len(answers), dtype=object)
        array[:] = answers  # np.array would turn labels of several types into texts
    else:
        try:
            array = np.asarray(answers)
        except ValueError:  # rows of different lengths
            array = np.asarray(list(answers), dtype=object)
    if array.ndim == 0 or len(array) != len(names):
        got = "a single value" if array.ndim == 0 else str(len(array))
        raise BaseClassifierError(
            f"the base classifier must return {len(names)} answers for {len(names)} copies, got {got} ({names[0]})"
        )
    if array.ndim == 1:
        known, numbers = {label: number for number, label in enumerate(classes)}, []
        for label, name in zip(array.tolist(), names, strict=True):
            plain = label.item() if isinstance(label, np.generic) else label
            if isinstance(plain, float) and plain != plain:
                raise BaseClassifierError(f"the base classifier returned NaN on {name}")
            try:
                numbers.append(known[plain])
            except (KeyError, TypeError):  # not a label, or nothing that could be one
                raise BaseClassifierError(
                    f"the base classifier returned an unknown label {plain!r} on {name}"
                ) from None
        return np.array(numbers)
    if array.ndim != 2 or array.dtype.kind not in "fiu" or array.shape[1] != len(classes):
        raise BaseClassifierError(
            f"the base classifier must return labels or a table of scores (copies by {len(classes)} classes), "
            f"got an array of shape {array.shape} and type {array.dtype} ({names[0]})"
        )
    return best_class(array, names)
