"""Settings of all tests: no time limits on a noisy machine; the slow suites look at more examples."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("quick", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=1500)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("thorough" if "slow or not slow" in config.getoption("-m", "") else "quick")
