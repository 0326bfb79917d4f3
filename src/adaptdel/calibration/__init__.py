"""AdaptDel+: choose how many tokens are kept at each input length."""

from adaptdel.calibration.calibration import calibrate
from adaptdel.calibration.candidates import Calibration
from adaptdel.settings import CalibrationSettings

__all__ = ["Calibration", "CalibrationSettings", "calibrate"]
