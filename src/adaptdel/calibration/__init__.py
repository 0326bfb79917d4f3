"""AdaptDel+: choose how many tokens are kept at each input length."""

from adaptdel.calibration.calibration import BinResult, Calibration, calibrate, prepare
from adaptdel.calibration.folders import plot_calibration
from adaptdel.calibration.rate_selection import RateSelection
from adaptdel.settings import CalibrationSettings

__all__ = [
    "BinResult",
    "Calibration",
    "CalibrationSettings",
    "RateSelection",
    "calibrate",
    "plot_calibration",
    "prepare",
]
