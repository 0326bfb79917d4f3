"""Settings of all tests: no time limits on a noisy machine; the slow suites look at more examples.

Skipped tests are named at the end, with what they need.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

# Some virtual machines advertise AMX and end the process at its first instruction. Read when torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# No test asks the hub for a model. Read when transformers is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# Tests run side by side: threads of one would only wait for those of another. Read when numpy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("quick", deadline=None)
settings.register_profile("thorough", deadline=None, max_examples=1500)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("thorough" if "slow or not slow" in config.getoption("-m", "") else "quick")


@pytest.fixture
def nothing_registered() -> Iterator[None]:
    """No noise, rate, bound or classifier of a user's module is registered, neither before the test nor after it."""
    from adaptdel.core import registry

    def forget() -> None:
        modules = registry.own_modules()
        for kind in registry._REGISTRIES:
            for name, entry in list(kind.entries.items()):
                if entry.__module__ in modules:
                    del kind.entries[name]
        for module in modules:
            sys.modules.pop(module, None)

    forget()
    yield
    forget()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name every test that was skipped, and why: no test is skipped in silence."""
    skipped = terminalreporter.stats.get("skipped", [])
    if not skipped:
        return
    terminalreporter.section(f"NOT TESTED: {len(skipped)} skipped", sep="=", red=True, bold=True)
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.line(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}", yellow=True)
