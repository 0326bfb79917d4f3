"""Base classifiers behind one protocol: callables, scikit-learn, linear, transformers, ONNX."""

from adaptdel.classifiers.base import BaseClassifier, BaseClassifierError, InconsistentAnswerError
from adaptdel.classifiers.callables import CallableClassifier, SklearnClassifier
from adaptdel.classifiers.linear import LinearClassifier

__all__ = [
    "BaseClassifier",
    "BaseClassifierError",
    "CallableClassifier",
    "InconsistentAnswerError",
    "LinearClassifier",
    "SklearnClassifier",
]
