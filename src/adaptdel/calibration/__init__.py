"""AdaptDel+: how much is kept at each length."""

from adaptdel.calibration.figure import plot_calibration
from adaptdel.calibration.result import BinResult, Calibration
from adaptdel.calibration.run import calibrate, prepare

__all__ = ["BinResult", "Calibration", "calibrate", "plot_calibration", "prepare"]
