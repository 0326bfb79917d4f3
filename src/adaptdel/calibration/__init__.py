"""AdaptDel+: how much is kept at each length."""

from adaptdel.calibration.calibration import BinResult, Calibration, calibrate, prepare
from adaptdel.calibration.folders import plot_calibration

__all__ = ["BinResult", "Calibration", "calibrate", "plot_calibration", "prepare"]
