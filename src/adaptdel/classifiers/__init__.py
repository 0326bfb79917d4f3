"""Base classifiers behind one small protocol: callables, scikit-learn, linear, transformers, ONNX."""

from adaptdel.classifiers.base import BaseClassifier, BaseClassifierError, InconsistentAnswerError
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.classifiers.text import CallableClassifier, SklearnClassifier

__all__ = [
    "BaseClassifier",
    "BaseClassifierError",
    "CallableClassifier",
    "InconsistentAnswerError",
    "LinearClassifier",
    "SklearnClassifier",
]
