"""Fit a base classifier under noise, for every method of the paper."""

from adaptdel.training.folders import Job, train_job
from adaptdel.training.methods import METHODS
from adaptdel.training.settings import Settings
from adaptdel.training.train import train

__all__ = ["METHODS", "Job", "Settings", "train", "train_job"]
