"""Train a base classifier under noise, by every method of the paper, or one with exact certificates."""

from adaptdel.settings import METHODS, TrainingSettings
from adaptdel.training.jobs import TrainingJob, train_job
from adaptdel.training.training import train, train_exact

__all__ = ["METHODS", "TrainingJob", "TrainingSettings", "train", "train_exact", "train_job"]
