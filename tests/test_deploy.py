"""The files of deploy/: their command lines are valid, and systemd accepts the service."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Context

from adaptdel.cli import commands
from adaptdel.settings import SERVE

DEPLOY = Path(__file__).parents[1] / "deploy"
UNIT = DEPLOY / "adaptdel.service"


def options(arguments: list[str]) -> dict[str, Any]:
    """The values of a command line of ``adaptdel serve``, which must be valid."""
    command = commands.get_command(Context(commands), "serve")
    assert command is not None
    return dict(command.make_context("serve", arguments).params)


def test_the_container_asks_for_the_token_and_is_asked_at_its_port() -> None:
    """Not whether it is ready: a server with a faulty model, or one that ends, is not to be killed."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    command = re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)
    assert command
    given = options(json.loads(command[1]))
    assert given["token_file"]
    assert given["port"] == SERVE.port
    assert f"127.0.0.1:{SERVE.port}/healthz" in text


def test_the_image_is_built_from_pinned_parts() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    images = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(images) == 2
    assert all(re.fullmatch(r"python:[\w.-]+@sha256:[0-9a-f]{64}", image) for image in images)
    assert text.index("ENV PIP_CONSTRAINT=") < text.index("RUN python -m pip")


def test_no_pod_of_the_example_runs_as_root() -> None:
    text = (DEPLOY.parent / "examples" / "cluster" / "rayjob.yaml").read_text(encoding="utf-8")
    cluster = yaml.safe_load(text)["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert group["template"]["spec"]["securityContext"]["runAsNonRoot"] is True


def test_the_service_has_its_secrets_and_time_to_end() -> None:
    lines = dict(
        line.split("=", 1) for line in UNIT.read_text(encoding="utf-8").splitlines() if re.match(r"\w+=", line)
    )
    _, name, *arguments = shlex.split(lines["ExecStart"])
    assert name == "serve"
    given = options(arguments)
    assert given["host"] == "127.0.0.1"
    assert given["token_file"]
    assert given["seed_file"]
    assert float(lines["TimeoutStopSec"]) > SERVE.grace_seconds + 5


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_service(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(
        UNIT.read_text(encoding="utf-8").replace("/opt/adaptdel/bin/adaptdel", "/bin/true"), encoding="utf-8"
    )
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
