"""What `make test` installs by itself, and that skipped tests are named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def installed(folder: Path, *programs: str, user: int = 0, fails: bool = False, **variables: str) -> tuple[str, str]:
    """What the script says, and the calls of apt-get, on a machine that has only these programs."""
    calls = folder / "calls"
    scripts = dict.fromkeys(programs, "")
    scripts |= {"id": f"echo {user}", "timeout": 'shift; exec "$@"', "sudo": 'shift; exec "$@"'}
    scripts["apt-get"] = f'echo "$@" >> {calls}; exit {int(fails)}'
    for name, body in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    shell = shutil.which("sh")
    assert shell is not None
    environment = {"PATH": str(folder), **variables}
    (folder / "sh").symlink_to(shell)
    (folder / "true").symlink_to(shutil.which("true") or "/bin/true")
    done = subprocess.run(
        [shell, ROOT / "tests" / "programs.sh"], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr, calls.read_text() if calls.exists() else ""


def test_nothing_is_done_where_all_is_there(tmp_path: Path) -> None:
    assert installed(tmp_path, "google-chrome", "openssl") == ("", "")


def test_root_installs_what_is_missing(tmp_path: Path) -> None:
    said, calls = installed(tmp_path, "openssl")
    assert said == "installing for the tests, by apt-get: chromium\n"
    assert calls == "update -qq\ninstall -y -qq --no-install-recommends chromium\n"


@pytest.mark.parametrize(
    ("user", "fails", "variables"),
    [(1000, False, {}), (0, False, {"PROGRAMS": "no"}), (0, True, {})],
    ids=["user", "not wanted", "no network"],
)
def test_what_cannot_be_installed_is_said(tmp_path: Path, user: int, fails: bool, variables: dict[str, str]) -> None:
    said, calls = installed(tmp_path, user=user, fails=fails, **variables)
    assert "NOT INSTALLED: chromium openssl - the tests that need them will be skipped." in said
    assert calls == ("update -qq\n" if fails else "")


def test_in_ci_sudo_is_used(tmp_path: Path) -> None:
    assert "install -y" in installed(tmp_path, user=1000, CI="true")[1]


def test_skipped_tests_are_named_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    (tmp_path / "test_some.py").write_text(
        "import pytest\n\n@pytest.mark.skipif(True, reason='a program is not installed: apt-get install it')\n"
        "def test_a():\n    pass\n\ndef test_b():\n    pytest.skip('not here')\n\ndef test_c():\n    pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "1", "."]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"NO_COLOR": "1"}, capture_output=True, text=True, check=False
    )
    assert "NOT TESTED: 2 skipped" in done.stdout
    assert "\ntest_some.py::test_a: a program is not installed: apt-get install it\n" in done.stdout
    assert "\ntest_some.py::test_b: not here\n" in done.stdout
