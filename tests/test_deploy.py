"""The files of deploy/: what the container and the service may do, and their commands in a fresh environment."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from click import Context

from adaptdel.cli import commands
from adaptdel.serve.configuration import SERVE

ROOT = Path(__file__).parents[1]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
UNIT = ROOT / "deploy" / "adaptdel.service"
TOKEN = "only-for-this-test"


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, each with its arguments; comments are left out and lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\s*\\\n\s*", " ", "\n".join(lines))
    parsed = [re.fullmatch(r"([A-Z]+)\s+(.+)", line.strip()) for line in joined.splitlines() if line.strip()]
    assert all(parsed), joined
    return [(match[1], match[2]) for match in parsed if match]


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of the Dockerfile by stage; what stands above the first stage is left out."""
    parts: list[list[tuple[str, str]]] = []
    for name, arguments in instructions(DOCKERFILE.read_text(encoding="utf-8")):
        if name == "FROM":
            parts.append([])
        if parts:
            parts[-1].append((name, arguments))
    return parts


def values(stage: list[tuple[str, str]], name: str) -> list[str]:
    return [arguments for instruction, arguments in stage if instruction == name]


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps a path out of the build: the last pattern that matches decides."""
    answer = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        if not pattern or line.startswith("#"):
            continue
        whole = [PurePosixPath(path), *PurePosixPath(path).parents][:-1]
        names = [part.name if line.startswith("**/") else str(part) for part in whole]
        if any(PurePosixPath(name).match(pattern) for name in names):
            answer = not line.startswith("!")
    return answer


def test_the_container_has_no_rights() -> None:
    build, final = stages()
    assert [name for name, _ in final if name in ("USER", "ENTRYPOINT", "CMD", "HEALTHCHECK", "EXPOSE")] == [
        "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD",
    ]  # fmt: skip
    (user,) = values(final, "USER")
    assert re.fullmatch(r"([1-9]\d{4,}):\1", user), "a number, which Kubernetes can check not to be root's"
    (account,) = values(final, "RUN")
    assert f"--uid {user.partition(':')[0]} " in account
    assert values(final, "VOLUME") == ['["/models"]']
    assert values(final, "STOPSIGNAL") == ["SIGTERM"]
    for stage in (build, final):
        names = {name for name, _ in stage}
        assert names <= {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL",
                         "HEALTHCHECK", "ENTRYPOINT", "CMD"}  # no ADD, which would take a URL  # fmt: skip


def test_no_secret_is_in_a_layer() -> None:
    for stage in stages():
        for name, arguments in stage:
            if name in ("ARG", "ENV", "COPY", "RUN"):
                assert not re.search(r"token|secret|seed|password|key", arguments, re.IGNORECASE), arguments
    copied = {path for arguments in values(stages()[0], "COPY") for path in arguments.split()[:-1]}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "constraints.txt", "src"}
    assert [path for path in copied if ignored(path)] == []
    for path in ("token", "model/base/weights.safetensors", ".git/config", "out/x", ".env", "tests/x", "deploy/x"):
        assert ignored(path), path
    assert not ignored("src/adaptdel/cli/serve.py")
    assert ignored("src/adaptdel/__pycache__/x.pyc")


def test_only_the_installed_environment_reaches_the_image() -> None:
    _, final = stages()
    assert values(final, "COPY") == ["--from=build /opt/adaptdel /opt/adaptdel"]


def serve_arguments(arguments: list[str]) -> dict[str, object]:
    """The values of a command line of ``adaptdel serve``, which must be valid."""
    command = commands.get_command(Context(commands), "serve")
    assert command is not None
    return dict(command.make_context("serve", arguments).params)


def test_the_command_of_the_container() -> None:
    _, final = stages()
    assert json.loads(values(final, "ENTRYPOINT")[0]) == ["adaptdel", "serve"]
    given = serve_arguments(json.loads(values(final, "CMD")[0]))
    assert given["models"] == ("/models/model",)
    assert given["host"] == "0.0.0.0"  # of the container; docker run decides who reaches it
    assert str(given["token_file"]) == "/run/secrets/token"
    assert given["port"] == SERVE.port == int(values(final, "EXPOSE")[0])
    options, _, command = values(final, "HEALTHCHECK")[0].partition(" CMD ")
    assert re.search(r"--start-period=\d+s", options)
    assert f"http://127.0.0.1:{SERVE.port}/readyz" in json.loads(command)[-1]
    head = DOCKERFILE.read_text(encoding="utf-8").split("ARG")[0]
    for option in ("--read-only", "--cap-drop ALL", "no-new-privileges", "-p 127.0.0.1:", "model:ro", "token:ro"):
        assert option in head


def unit() -> configparser.ConfigParser:
    class Repeated(dict[str, object]):
        """Keeps all values of a key that is repeated, as systemd does."""

        def __setitem__(self, key: str, value: object) -> None:
            if isinstance(value, list) and isinstance(self.get(key), list):
                value = [*self[key], *value]  # type: ignore[misc]
            super().__setitem__(key, value)

    parser = configparser.ConfigParser(
        dict_type=Repeated,  # type: ignore[arg-type]
        strict=False,
        interpolation=None,
        comment_prefixes=("#",),
        delimiters=("=",),
    )
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text(encoding="utf-8"))
    return parser


def test_the_service_has_no_rights() -> None:
    service = unit()["Service"]
    on = ("DynamicUser", "NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "PrivateUsers",
          "ProtectKernelTunables", "ProtectKernelModules", "ProtectControlGroups", "RestrictNamespaces",
          "RestrictSUIDSGID", "LockPersonality", "MemoryDenyWriteExecute")  # fmt: skip
    assert [name for name in on if service.get(name) != "yes"] == []
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    assert "User" not in service


def test_the_command_of_the_service() -> None:
    service = unit()["Service"]
    program, name, *arguments = shlex.split(service["ExecStart"])
    assert (program, name) == ("/opt/adaptdel/bin/adaptdel", "serve")
    given = serve_arguments(arguments)
    assert given["host"] == "127.0.0.1"
    assert (str(given["token_file"]), str(given["seed_file"])) == ("%d/token", "%d/seed")
    assert service["LoadCredential"].split("\n") == ["token:/etc/adaptdel/token", "seed:/etc/adaptdel/seed"]
    assert float(service["TimeoutStopSec"]) > SERVE.grace_seconds + 5
    assert int(service["LimitNOFILE"]) > 2 * SERVE.connections


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_service(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(
        UNIT.read_text(encoding="utf-8").replace("/opt/adaptdel/bin/adaptdel", "/bin/true"), encoding="utf-8"
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(copy)]  # of 100; less is safer
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout


class Container:
    """The paths of the Dockerfile below a folder, with its COPY and RUN instructions done there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables = {"EXTRAS": "serve"}

    def mapped(self, text: str) -> str:
        """A text with the paths of the container in the folder."""
        return re.sub(r"(?<![\w.}-])/(build|wheels|opt|models|run|tmp)\b", lambda m: f"{self.folder}/{m[1]}", text)

    def run_stage(self, stage: list[tuple[str, str]]) -> None:
        here = self.folder
        for name, arguments in stage:
            if name == "WORKDIR":
                here = Path(self.mapped(arguments))
                here.mkdir(parents=True, exist_ok=True)
            elif name == "COPY":
                self.copy(arguments.split(), here)
            elif name == "RUN":
                script = f'set -e; python() {{ {shlex.quote(sys.executable)} "$@"; }}; {self.mapped(arguments)}'
                hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
                kept = {key: value for key, value in os.environ.items() if key not in hidden}
                done = subprocess.run(
                    ["sh", "-c", script], cwd=here, env={**kept, **self.variables}, capture_output=True, text=True,
                    check=False,
                )  # fmt: skip
                assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"

    def copy(self, arguments: list[str], here: Path) -> None:
        *sources, target = arguments
        for source in sources:
            place = here / target if target.rstrip("/") != "." else here
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy(ROOT / source, place)


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@pytest.fixture
def container(tmp_path: Path) -> Container:
    return Container(tmp_path)


@pytest.mark.slow
def test_the_commands_of_the_container_run(container: Container) -> None:
    """In a fresh virtual environment, with dependencies from the package index. Fails without an index."""
    build, final = stages()
    container.run_stage(build)
    folder, programs = container.folder, container.folder / "opt" / "adaptdel" / "bin"
    rows = ["win money now,spam", "lunch at noon,ham", "free money,spam", "see you at lunch,ham"] * 20
    (folder / "train.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    command = [programs / "adaptdel", "train", "--data", folder / "train.csv", "--out", folder / "models" / "model"]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, cwd=folder)
    (folder / "run" / "secrets").mkdir(parents=True)
    (folder / "run" / "secrets" / "token").write_text(TOKEN + "\n", encoding="ascii")

    port = free_port()
    entry, arguments = (json.loads(values(final, name)[0]) for name in ("ENTRYPOINT", "CMD"))
    local = {"0.0.0.0": "127.0.0.1", str(SERVE.port): str(port)}
    given = [local.get(argument, container.mapped(argument)) for argument in arguments]
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    check = json.loads(values(final, "HEALTHCHECK")[0].partition(" CMD ")[2])
    check = [part.replace(f":{SERVE.port}/", f":{port}/") for part in check]
    with subprocess.Popen(
        [programs / entry[0], *entry[1:], *given], env=environment, cwd=folder, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            until = time.monotonic() + 120
            while subprocess.run(check, env=environment, capture_output=True, check=False).returncode:
                assert running.poll() is None, running.stderr and running.stderr.read()
                assert time.monotonic() < until
                time.sleep(0.5)
            ask_for_a_certificate(port)
            running.send_signal(signal.SIGTERM)
            _, log = running.communicate(timeout=60)
            assert running.returncode == 0, log
            assert TOKEN not in log
        finally:
            running.kill()
    assert subprocess.run(check, env=environment, capture_output=True, check=False).returncode, "no server, no health"


def ask_for_a_certificate(port: int) -> None:
    headers = {"Content-Type": "application/json"}
    body = json.dumps({"text": "free money now"}).encode()
    with pytest.raises(HTTPError) as caught:
        urlopen(Request(f"http://127.0.0.1:{port}/v1/certify", body, headers), timeout=30)
    with caught.value:
        assert caught.value.code == 401
    headers["Authorization"] = f"Bearer {TOKEN}"
    with urlopen(Request(f"http://127.0.0.1:{port}/v1/certify", body, headers), timeout=30) as response:
        (result,) = json.loads(response.read())["results"]
    assert result["label"] == "spam"
