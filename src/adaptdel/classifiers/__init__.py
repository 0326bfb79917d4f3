"""Base classifiers behind one protocol: callables, scikit-learn, linear, embedding network, transformers, ONNX."""

from adaptdel.classifiers.base import BaseClassifier, BaseClassifierError, InconsistentAnswerError
from adaptdel.classifiers.callables import CallableClassifier, SklearnClassifier
from adaptdel.classifiers.embedding import EmbeddingClassifier
from adaptdel.classifiers.linear import LinearClassifier

__all__ = [
    "BaseClassifier",
    "BaseClassifierError",
    "CallableClassifier",
    "EmbeddingClassifier",
    "InconsistentAnswerError",
    "LinearClassifier",
    "SklearnClassifier",
]
