"""What starting loads: a command or a model imports no library that it does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import adaptdel as ad

NEVER = {
    *("sklearn", "scipy.optimize", "scipy.stats", "pyarrow", "torch", "transformers", "matplotlib", "joblib"),
    *("flint", "jinja2", "pandas"),
}
TEXTS, LABELS = ["good fine film", "bad dull film"] * 8, ["pos", "neg"] * 8


def loaded(program: str, *arguments: object) -> set[str]:
    command = [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)", *map(str, arguments)]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_help_loads_no_numbers() -> None:
    help_ = "from adaptdel.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert not loaded(help_) & ({"numpy", "scipy"} | NEVER)


@pytest.mark.parametrize("kind", [ad.AdditiveClassifier, ad.SmoothedClassifier])
def test_a_model_loads_what_it_uses(kind: type[ad.AdditiveClassifier], tmp_path: Path) -> None:
    kind(progress=False).fit(TEXTS, LABELS).save(tmp_path / "model")
    modules = loaded("import adaptdel\nadaptdel.load(sys.argv[1]).certifier()", tmp_path / "model")
    assert not modules & ({"scipy.special", "scipy.sparse", "click"} | NEVER)
    others = {"additive": "sampling", "smoothed": "scores"}
    assert f"adaptdel.certification.{others[kind.kind]}" not in modules


def test_every_name_is_there() -> None:
    for name in ad.__all__:
        assert getattr(ad, name) is getattr(ad, name)
    with pytest.raises(AttributeError):
        ad.nothing  # noqa: B018


def test_help_says_what_the_commands_say() -> None:
    from adaptdel.cli import COMMANDS, Commands

    group = Commands("adaptdel")
    for name, line in COMMANDS.items():
        command = group.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        assert " ".join((command.help or "").split()).startswith(line.rstrip("."))
