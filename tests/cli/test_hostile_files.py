"""Damaged and hostile files: one sentence that names the file and what to do, and nothing half-written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adaptdel import Deletion, FixedRate
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.inputs import Source
from adaptdel.text.data import read_examples
from tests.cli.test_fuzz import Workspace
from tests.run_files import make_data, make_model, run

ROWS = [{"text": f"w{number} words", "label": number % 2} for number in range(9)]
NAMED = [{"text": "a"}, {"text": "b"}]


def sentence(action: Callable[[], object]) -> str:
    """What a ValueError says, in one line."""
    with pytest.raises(ValueError) as error:
        action()
    assert type(error.value) is ValueError
    assert "\n" not in str(error.value)
    return str(error.value)


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_files_that_may_not_be_read_and_paths_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sentence(lambda: read_examples("a\0b.csv"))
    locked = make_data(tmp_path / "y.jsonl")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", str(locked))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert sentence(lambda: read_examples(locked)) == f"{locked}: cannot be read: Permission denied"
    assert sentence(lambda: Source(str(locked)).identity()) == f"{locked}: cannot be read: Permission denied"
    (tmp_path / "adaptdel.json").touch()
    expected = f"{tmp_path / 'adaptdel.json'}: cannot be read: Permission denied"
    assert sentence(lambda: SmoothedClassifier.load(tmp_path)) == expected


def test_certify_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "x.jsonl")
    assert run("certify", model, "--data", data, "--out", tmp_path / "run", "--encoding", "rot13") == 2
    assert capsys.readouterr().err.startswith(f"adaptdel: {data}: ")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("hostile"))


DELETED = object()


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("adaptdel.json", {"alpha": "x"}, "damaged: alpha must be a number, got 'x'"),
        ("adaptdel.json", {"alpha": 7}, "damaged: alpha must be in (0, 1), got 7"),
        ("adaptdel.json", {"n_select": None}, "damaged: n_select must be an integer, got None"),
        ("adaptdel.json", {"n_estimate": 2**60}, "damaged: n_estimate must be an integer"),
        ("adaptdel.json", {"ops": "edit"}, "damaged: ops must be a list, got 'edit'"),
        ("adaptdel.json", {"ops": [["del"]]}, "damaged: "),
        ("adaptdel.json", {"bound": "loose"}, "the bound 'loose' is not registered"),
        ("adaptdel.json", {"seed": -1}, "damaged: seed must be"),
        ("adaptdel.json", {"threshold": DELETED}, "damaged: threshold is missing"),
        ("adaptdel.json", {"fingerprint": DELETED}, "damaged: fingerprint is missing"),
        ("adaptdel.json", {"classes": ["a", "b"]}, "damaged: its classes are not those of the base classifier"),
        (
            "adaptdel.json",
            {"base": "pickle"},
            "the classifier 'pickle' is not registered, only ",
        ),
        ("adaptdel.json", {"base": []}, "damaged: base must be a text, got []"),
        ("adaptdel.json", {"options": 3}, "damaged: options must be an object, got 3"),
        ("adaptdel.json", {"noise": {"kind": "deletion", "rate": 7}}, "damaged: "),
        ("training.json", {"data": []}, "damaged: "),
        ("training.json", {"data": DELETED}, "damaged: "),
        ("training.json", {"held_out": 7}, "damaged: "),
        ("training.json", {"noise": {}}, "damaged: the kind of a noise must be"),
        ("calibration.json", {"warnings": 5}, "damaged: "),
        ("calibration.json", {"classes": [3]}, "damaged: "),
    ],
)
def test_damaged_models(space: Workspace, file: str, changes: dict[str, Any], words: str) -> None:
    folder = space.copy(space.model, "model")
    path = folder / file
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not DELETED}))
    found = sentence(lambda: SmoothedClassifier.load(folder))
    assert found.startswith(f"{path}: {words}")
    assert "damaged" not in words or found.endswith(": save or copy the model anew")


@pytest.mark.parametrize("file", ["adaptdel.json", "training.json", "calibration.json"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON: Expecting value (line 1, column 1)"),
        (b"\xff", "not UTF-8 (invalid start byte)"),
        (b"[1]", "it must hold an object"),
        (b'{"a": 1, "a": 2}', "the field 'a' is repeated"),
        (b'{"a":' * 5000, "nested too deeply"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "an integer must have at most 64 digits, got 5000"),
    ],
)
def test_json_that_is_none(space: Workspace, file: str, content: bytes, words: str) -> None:
    folder = space.copy(space.model, "model")
    (folder / file).write_bytes(content)
    found = sentence(lambda: SmoothedClassifier.load(folder))
    assert found.startswith(f"{folder / file}: not a file of a saved model: {words}")
    assert found.endswith(": write or copy it again")


def test_models_with_missing_parts(space: Workspace) -> None:
    folder = space.copy(space.model, "model")
    shutil.rmtree(folder / "base")
    expected = f"{folder / 'base'}: missing from a saved model: save or copy the model anew"
    assert sentence(lambda: SmoothedClassifier.load(folder)) == expected
    folder = space.copy(space.model, "model")
    (folder / "base" / "linear.json").write_bytes(b"[" * 100_000)
    found = sentence(lambda: SmoothedClassifier.load(folder))
    assert found.startswith(str(folder / "base" / "linear.json"))


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))


def test_a_model_of_any_unit_and_noise_is_loaded(tmp_path: Path) -> None:
    kinds: list[dict[str, Any]] = [{"unit": "char"}, {"unit": "chunk:3"}, {"ops": ("del",)}, {"threshold": 0.3}]
    for number, settings in enumerate(kinds):
        folder = make_model(tmp_path / str(number), Deletion(FixedRate(0.5)), **settings)
        assert SmoothedClassifier.load(folder).certify(["w1 w2"])[0].length in (2, 5)
