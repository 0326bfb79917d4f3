"""AdaptDel+: choose how many tokens are kept at each input length."""

from adaptdel.calibration.calibration import BinResult, Calibration, CalibrationSettings, calibrate, prepare
from adaptdel.calibration.folders import plot_calibration

__all__ = ["BinResult", "Calibration", "CalibrationSettings", "calibrate", "plot_calibration", "prepare"]
