"""What the estimators share: the conventions of scikit-learn, also where it is not installed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

try:
    from sklearn.base import BaseEstimator as BaseEstimator
    from sklearn.base import ClassifierMixin as ClassifierMixin
except ImportError:  # the estimators have the same methods without scikit-learn

    class ClassifierMixin:  # type: ignore[no-redef]
        """Stands in where scikit-learn is not installed."""

        def score(self, X: Sequence[Any], y: Sequence[Any]) -> float:
            """The share of correct answers."""
            return float(np.mean([a == b for a, b in zip(self.predict(X), y, strict=True)]))  # type: ignore[attr-defined]

    class BaseEstimator:  # type: ignore[no-redef]
        """Stands in where scikit-learn is not installed."""

        def get_params(self, deep: bool = True) -> dict[str, Any]:
            """The arguments of the constructor."""
            names = [name for name in inspect.signature(type(self).__init__).parameters if name != "self"]
            return {name: getattr(self, name) for name in names}

        def set_params(self, **params: Any) -> Any:
            """Change arguments of the constructor."""
            for name, value in params.items():
                if name not in self.get_params():
                    raise ValueError(f"{name!r} is not a parameter of {type(self).__name__}")
                setattr(self, name, value)
            return self


def label_array(names: list[Any]) -> Any:
    """Labels as an array that keeps their types."""
    return np.array(names) if len({type(name) for name in names}) <= 1 else np.array(names, dtype=object)


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
