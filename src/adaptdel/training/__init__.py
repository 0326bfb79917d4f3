"""Fit a base classifier under noise, for every method of the paper."""

from adaptdel.training.jobs import TrainingJob, train_job
from adaptdel.training.settings import METHODS, Settings
from adaptdel.training.training import train

__all__ = ["METHODS", "Settings", "TrainingJob", "train", "train_job"]
