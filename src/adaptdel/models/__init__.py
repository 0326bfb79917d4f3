"""Models that certify: `SmoothedClassifier` and `AdditiveClassifier`; their folders and model cards."""

from adaptdel.models.model_files import load_model as load

__all__ = ["load"]
