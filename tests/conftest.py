"""Settings of all tests: no time limits on a noisy machine; the slow suites look at more examples."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Some virtual machines advertise AMX and end the process at its first instruction. Read when torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Tests run side by side: threads of one would only wait for those of another. Read when numpy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("quick", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=1500)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("thorough" if "slow or not slow" in config.getoption("-m", "") else "quick")
