"""AdaptDel+: choose how many tokens are kept at each input length; the threshold of a protected class."""

from adaptdel.calibration.calibration import Calibration, calibrate
from adaptdel.settings import CalibrationSettings

__all__ = ["Calibration", "CalibrationSettings", "calibrate"]
