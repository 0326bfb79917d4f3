"""What the documents show is what happens."""

from __future__ import annotations

import re
import runpy
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_run(path: Path) -> None:
    with redirect_stdout(StringIO()) as out:
        runpy.run_path(str(path), run_name="__main__")
    assert out.getvalue()


def test_the_readme_prints_what_it_says() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(code) == 2
    with redirect_stdout(StringIO()) as out:
        exec(code[0], {})
    printed = out.getvalue().splitlines()
    said = re.findall(r"^print.*# (\S+)", code[0], re.MULTILINE)
    assert said[:2] == printed[:2] == ["11", "50"]
    assert round(float(printed[2]), 4) == float(said[2].rstrip(":"))
    assert printed[3].startswith("[(")


def test_the_readme_smooths_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    with redirect_stdout(StringIO()) as out:
        exec(code, {})
    label, radius, abstained = out.getvalue().splitlines()[0].split()
    assert (label, abstained) == ("spam", "False")
    assert int(radius) >= 0
    assert (tmp_path / "out" / "model" / "adaptdel.json").exists()


def test_the_readme_s_plan_is_the_real_one() -> None:
    from click.testing import CliRunner

    from adaptdel.cli import commands

    page = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^\$ adaptdel (plan .*)\n((?:.*\n)*?)```", page, re.MULTILINE)
    assert block
    shown = CliRunner().invoke(commands, block[1].split()).output.splitlines()
    for line in block[2].splitlines():
        assert line == "   ..." or line in shown
