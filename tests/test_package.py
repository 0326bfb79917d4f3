"""The package and its metadata: one version number, a complete wheel, and the files that contributors rely on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import adaptdel

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "adaptdel"
ROWS = ["win money now,spam", "lunch at noon,ham", "free money,spam", "see you at lunch,ham"]
# Runs in the fresh environment: where the package comes from, and whether its data files can be read.
LOOK = """
import sys, adaptdel
from importlib.metadata import version
from importlib.resources import files
assert version("adaptdel") == adaptdel.__version__, version("adaptdel")
for name in sys.argv[1:]:
    assert files("adaptdel").joinpath(name).is_file(), name
print(adaptdel.__file__)
"""


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def pins(name: str = "constraints.txt") -> dict[str, str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): pin for name, pin in pairs}


def data_files() -> list[str]:
    """Files of the package that are not Python code, as paths inside the package."""
    paths = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted(path.relative_to(SOURCE).as_posix() for path in paths if path.suffix not in (".py", ".pyc"))


def test_the_version_number_is_written_once() -> None:
    assert project()["dynamic"] == ["version"]
    assert "version" not in project()
    assert re.fullmatch(r"\d+\.\d+\.\d+", adaptdel.__version__)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == adaptdel.__version__


def test_every_dependency_is_pinned() -> None:
    groups = [project()["dependencies"], *project()["optional-dependencies"].values()]
    names = [Requirement(text).name for group in groups for text in group]
    unpinned = (
        {canonicalize_name(name) for name in names} - set(pins()) - set(pins("constraints-attack.txt")) - {"adaptdel"}
    )
    assert unpinned <= {"s3fs", "tensorflow", "tensorflow-hub"}  # by no target of the Makefile


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_run_targets_that_exist(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job.get("steps", ())]
    for action in [step["uses"] for step in steps if "uses" in step]:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)  # a tag can be moved to other code
    commands = [step["run"] for step in steps if "run" in step]
    assert commands
    for command in commands:
        if command.startswith("make "):
            subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, check=True)


def run(*arguments: object, folder: Path) -> str:
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    command = [str(argument) for argument in arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def check_installed(python: Path) -> None:
    """Use the installed package from a folder outside the repository."""
    folder = python.parents[2] / "work"
    folder.mkdir()
    place = run(python, "-I", "-c", LOOK, *data_files(), folder=folder)
    assert Path(place.strip()).is_relative_to(python.parents[1])
    command = python.with_name("adaptdel")
    assert run(command, "--version", folder=folder) == f"adaptdel, version {adaptdel.__version__}\n"
    rate = ("--rate", "adaptdel:p_min=0.9,k=23")
    plan = run(command, "plan", "--length", "400", *rate, "--votes", "3960/4000", folder=folder)
    assert "Certified radius 11" in plan
    (folder / "train.csv").write_text("text,label\n" + "\n".join(ROWS * 20) + "\n", encoding="utf-8")
    run(command, "train", "--data", "train.csv", "--out", "model", folder=folder)
    summary = run(command, "certify", "model", "--data", "train.csv", "--limit", "4", "--out", "run", folder=folder)
    assert "of 4 inputs have right answers" in summary


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources by the setuptools of this environment: without a package index."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "sources"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    options = ("--no-deps", "--no-build-isolation", "--no-index")
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, copy, folder=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_wheel_is_complete(wheel: Path) -> None:
    assert wheel.name == f"adaptdel-{adaptdel.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = archive.read(metadata).decode()
    modules = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    assert "py.typed" in data_files()
    assert {name for name in names if name.startswith("adaptdel/")} == {
        f"adaptdel/{name}" for name in {*modules, *data_files()}
    }
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"adaptdel"}
    assert f"\nVersion: {adaptdel.__version__}\n" in fields
    assert "\nProject-URL: Paper, https://" in fields


def test_the_wheel_runs_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    """Needs no package index: the declared dependencies, and nothing else, are linked from this environment."""
    venv.create(tmp_path / "environment", with_pip=False, symlinks=True)
    python = tmp_path / "environment" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel, folder=tmp_path)
    place = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=tmp_path)
    packages = Path(place.strip())
    waiting, linked = [Requirement(text) for text in project()["dependencies"]], set()
    while waiting:
        requirement = waiting.pop()
        if requirement.name in linked or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        linked.add(requirement.name)
        installed = distribution(requirement.name)
        for name in {file.parts[0] for file in installed.files or []} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(installed.locate_file(name))).resolve())
        waiting += [Requirement(text) for text in installed.requires or []]
    check_installed(python)
