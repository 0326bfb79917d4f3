"""Damaged and hostile files: one sentence that names the file and what to do, and nothing half-written."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from adaptdel import Deletion, FixedRate
from adaptdel.calibration.calibration import Calibration
from adaptdel.classifiers.transformer_training import claim, last_whole, mark, read_state
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.inputs import Source
from adaptdel.runs.storage import open_store, read_run, run_records
from adaptdel.text.data import read_examples, read_rows
from adaptdel.text.file_formats import LONGEST, records
from adaptdel.training.jobs import TrainingJob, read_jobs, train_job
from tests.cli.test_fuzz import TRAINING_STATE, Workspace
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


@pytest.mark.parametrize(
    "encoding",
    ["idna", "punycode", "undefined", "unicode_escape", "rot13", "hex", "zip", "no such", "", "a\0b", "é"],
)
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_what_is_no_encoding_of_text_is_refused_with_the_file(tmp_path: Path, kind: str, encoding: str) -> None:
    path = tmp_path / f"x.{kind}"
    if kind == "parquet":
        parquet(path, text=["a"], label=[0])
    else:
        path.write_text("text,label\na,0\n" if kind == "csv" else '{"text": "a", "label": 0}')
    expected = f"{path}: the encoding must be one of text, such as utf-8, utf-16 or latin-1, got {encoding!r}"
    assert sentence(lambda: read_examples(path, encoding=encoding)) == expected


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le", "cp037", "utf-7", "utf-8-sig"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_wide_encodings_are_read(tmp_path: Path, kind: str, encoding: str) -> None:
    path = tmp_path / f"x.{kind}"
    text = "text,label\ncafé,1\nb,0\n" if kind == "csv" else '{"text": "café", "label": 1}\n{"text": "b", "label": 0}\n'
    path.write_bytes(text.encode(encoding))
    assert read_examples(path, encoding=encoding).texts == ["café", "b"]


@pytest.mark.parametrize(
    ("name", "data", "encoding", "words"),
    [
        ("x.csv", b"text,label\na,1\n", "utf-16", ", row 1: not UTF-16 (UTF-16 stream does not start with BOM): save"),
        ("x.csv", b"text,label\na,1\n", "utf-32", ", row 1: not UTF-32 ("),
        ("x.jsonl", b'{"text": "a", "label": 1}', "utf-16", ", row 1: not UTF-16 ("),
        ("x.jsonl", b'{"text": "a", "label": ' + b"9" * 5000 + b"}", "utf-8", ", row 1: not JSON that can be read ("),
        ("x.jsonl", b"[" * 100_000, "utf-8", ", row 1: not JSON that can be read (nested too deeply)"),
        (
            "x.jsonl",
            b'{"text": "a", "label": 1e300}',
            "utf-8",
            ", row 1: the column 'label' must hold names or numbers",
        ),
        (
            "x.jsonl",
            b'{"text": "a", "label": "\\ud800"}',
            "utf-8",
            ", row 1: the column 'label' holds half of a surrog",
        ),
        ("x.csv", b"text,label\na,\xe9\n", "utf-8", ", row 1: not UTF-8: save the file as UTF-8"),
        ("x.csv", b'text,label\n"a"b,1\n', "utf-8", ", row 1: not CSV: ',' expected after '\"': put fields that hold"),
        ("x.csv", b"\xe9,\xe9\n", "utf-8", ": the header names a column twice: '\\udce9', '\\udce9': give every col"),
        (
            "x.parquet.gz",
            gzip.compress(b"nonsense", mtime=0),
            "utf-8",
            ": not a Parquet file: write or copy it again (",
        ),
    ],
)
def test_rows_that_cannot_be_read(tmp_path: Path, name: str, data: bytes, encoding: str, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert sentence(lambda: read_examples(path, encoding=encoding)).startswith(f"{path}{words}")


def test_a_mark_at_the_beginning_and_large_letters_in_the_ending(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "a", "label": 1}')
    assert read_examples(path).texts == ["a"]
    path = tmp_path / "X.CSV"
    path.write_text("text,label\na,1\nb,0\n")
    assert read_examples(path).labels == [1, 0]


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", text=[f"text {number}" for number in range(5000)], label=[0, 1] * 2500)
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    damaged = {
        "": b"PAR1" + b"\0" * 8 + b"PAR1",
        "footer": data[: -8 - size] + bytes(size) + data[-8:],
        "pages": data[:4] + b"\xff" * 3000 + data[3004:],
        "half": data[: len(data) // 2],
    }
    for content in damaged.values():
        path.write_bytes(content)
        assert sentence(lambda: read_examples(path)).startswith(
            (f"{path}: not a Parq", f"{path}: the Parquet file is d")
        )


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"text": [["a"]], "label": [0]}, "the column 'text' must hold text, got the type list<"),
        ({"text": [b"\xff"], "label": [0]}, "the column 'text' must hold text, got the type binary"),
        ({"text": [None], "label": [0]}, "the column 'text' must hold text, got the type null"),
        (
            {"text": ["a"], "label": [{"a": 1}]},
            "the column 'label' must hold whole numbers or names, got the type struct",
        ),
        ({"text": ["a"], "label": pa.array([1], pa.timestamp("ns"))}, "the column 'label' must hold whole numbers or"),
        ({"body": ["a"], "label": [0]}, "no column 'text': there are 'body', 'label'"),
    ],
)
def test_odd_types_of_parquet(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    path = parquet(tmp_path / "x.parquet", **columns)
    assert sentence(lambda: list(read_rows(path))).startswith(f"{path}: {words}")


def test_columns_that_are_not_wanted_do_not_matter(tmp_path: Path) -> None:
    times = pa.array([2**62 + 1], pa.timestamp("ns"))  # no date of Python's
    path = parquet(
        tmp_path / "x.parquet", id=times, other=times, text=pa.array(["a"]).dictionary_encode(), label=[True]
    )
    [row] = read_rows(path)
    assert (row.id, row.text, row.label) == ("2116-02-20 23:53:38.427387905", "a", 1)


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adaptdel.text.file_formats.LONGEST", 100)
    for name in ("x.jsonl", "x.csv"):
        path = tmp_path / name
        path.write_text("text,label\n" if name == "x.csv" else '{"text": "a", "label": 0}\n')
        with path.open("a") as file:
            file.write("x" * 200)
        found = sentence(lambda path=path: read_examples(path))  # type: ignore[misc]
        assert found.startswith((f"{path}, row 2: longer than 100 characters", f"{path}, row 1: not CSV: field larger"))
    csv.field_size_limit(LONGEST)  # all programs in a process share it
    assert LONGEST >= 10**8


def test_files_that_may_not_be_read_and_paths_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.csv"
    path.mkdir()
    assert sentence(lambda: read_examples(path)).endswith("or a folder of such files; got a folder without any")
    assert "no such file" in sentence(lambda: list(records("a\0b.csv", "utf-8")))
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


def test_a_data_set_that_breaks_off(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    def stream(*_: object, **__: object) -> Iterator[dict[str, Any]]:
        yield {"text": "a", "label": 0}
        raise RuntimeError("connection lost")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=stream))
    assert sentence(lambda: list(read_rows("reviews"))) == "reviews: cannot be read after row 1: connection lost"


def test_certify_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "x.jsonl")
    assert run("certify", model, "--data", data, "--out", tmp_path / "run", "--encoding", "idna") == 2
    assert capsys.readouterr().err.startswith(f"adaptdel: {data}: the encoding must be")
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
        ("adaptdel.json", {"n_select": None}, "damaged: n_select must be a whole number, got None"),
        ("adaptdel.json", {"n_estimate": 2**60}, "damaged: n_estimate must be a whole number"),
        ("adaptdel.json", {"ops": "edit"}, "damaged: ops must be a list, got 'edit'"),
        ("adaptdel.json", {"ops": [["del"]]}, "damaged: "),
        ("adaptdel.json", {"bound": "loose"}, "damaged: bound must be one of"),
        ("adaptdel.json", {"k": 9}, "damaged: k must be below the number of classes 2, got 9"),
        ("adaptdel.json", {"seed": -1}, "damaged: seed must be"),
        ("adaptdel.json", {"threshold": DELETED}, "damaged: threshold is missing"),
        ("adaptdel.json", {"fingerprint": DELETED}, "damaged: fingerprint is missing"),
        ("adaptdel.json", {"classes": ["a", "b"]}, "damaged: its classes are not those of the base classifier"),
        (
            "adaptdel.json",
            {"base": "pickle"},
            "a base classifier of the kind 'pickle' is not registered, only ",
        ),
        ("adaptdel.json", {"base": []}, "damaged: base must be a text, got []"),
        ("adaptdel.json", {"options": 3}, "damaged: options must be an object, got 3"),
        ("adaptdel.json", {"noise": {"kind": "deletion", "rate": 7}}, "damaged: "),
        ("training.json", {"seed": "x"}, "damaged: seed must be a whole number, got 'x'"),
        ("training.json", {"data": []}, "damaged: data must be an object, got []"),
        ("training.json", {"history": []}, "damaged: history must hold an object for every epoch"),
        ("training.json", {"validation": 7.5}, "damaged: validation must be a probability in [0, 1], got 7.5"),
        ("training.json", {"noise": {}}, "damaged: the kind of a noise must be one of"),
        ("calibration.json", {"warnings": 5}, "damaged: warnings must be a list, got 5"),
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
        (b'{"a": ' + b"9" * 5000 + b"}", "a whole number must have at most 64 digits, got 5000"),
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
    assert found == f"{folder / 'base' / 'linear.json'} must be a JSON file: nested too deeply"


def test_damaged_transformers(space: Workspace) -> None:
    pytest.importorskip("torch")
    for name, value, words in [
        ("config.json", {"num_hidden_layers": 10**9}, "config.json: num_hidden_layers cannot be 1000000000"),
        ("config.json", {"num_labels": 10**9}, "config.json: num_labels cannot be 1000000000"),
        ("config.json", {"vocab_size": 10**12}, ": the model cannot be read (its weights do not fit its config.json)"),
        ("config.json", {"num_attention_heads": 0}, ": the model cannot be read ("),
        ("config.json", {"id2label": [1]}, ": the model cannot be read ("),
        ("tokenizer.json", {"model": None}, ": the model cannot be read ("),
    ]:
        folder = space.copy(space.transformer, "transformer")
        path = folder / "base" / name
        path.write_text(json.dumps(json.loads(path.read_text()) | value))
        expected = f"{path}: its SHA-256 differs from that of the saved file: save or copy the model anew"
        assert sentence(lambda folder=folder: SmoothedClassifier.load(folder)) == expected  # type: ignore[misc]
        settings = json.loads((folder / "adaptdel.json").read_text())
        (folder / "adaptdel.json").write_text(json.dumps(settings | {"files": {}}))  # as hostile hands would
        start = time.process_time()
        found = sentence(lambda folder=folder: SmoothedClassifier.load(folder))  # type: ignore[misc]
        assert words in found.removeprefix(str(folder))
        assert time.process_time() - start < 30
    folder = space.copy(space.transformer, "transformer")
    (folder / "base" / "model.safetensors").unlink()
    expected = f"{folder / 'base' / 'model.safetensors'}: missing from a saved model: save or copy the model anew"
    assert sentence(lambda: SmoothedClassifier.load(folder)) == expected


def test_weights_that_are_not_numbers(space: Workspace) -> None:
    torch = pytest.importorskip("torch")
    model = SmoothedClassifier.load(space.transformer)
    base: Any = model.base_
    with torch.no_grad():
        next(base.model.parameters())[0, 0] = float("nan")
    base._fingerprint = None
    folder = space.new("nan")
    model.save(folder)
    assert "are not all finite numbers: train the model anew" in sentence(lambda: SmoothedClassifier.load(folder))


def test_a_training_whose_record_is_damaged(space: Workspace, tmp_path: Path) -> None:
    data = space.root / "train.jsonl"
    folder = space.copy(space.model, "trained")
    job = TrainingJob.from_dict({"data": str(data), "out": str(folder), "method": "adaptdel+", "bits": 6})
    (folder / "training.json").write_bytes(b"{")
    assert sentence(lambda: train_job(job)).startswith(f"{folder / 'training.json'}: not the record of a training: ")
    work = tmp_path / ".out.training"
    work.mkdir()
    (work / "training.json").write_bytes(b"{")
    job = TrainingJob.from_dict({"data": str(data), "out": str(tmp_path / "out"), "model": "bert"})
    found = sentence(lambda: train_job(job))
    assert found.startswith(f"{work / 'training.json'}: not the settings of an interrupted training: not JSON: ")
    assert found.endswith(f": write or copy it again, or delete {work}")


def test_damaged_checkpoints(tmp_path: Path) -> None:
    one = tmp_path / "checkpoint-2"
    one.mkdir()
    state = one / "trainer_state.json"
    for values, words in (
        (TRAINING_STATE | {"log_history": 5}, "log_history must be a list, got 5"),
        (TRAINING_STATE | {"log_history": [{"step": 1, "loss": 0.5}]}, "'epoch'"),
        (TRAINING_STATE | {"best_model_checkpoint": 5}, "best_model_checkpoint must be a text, got 5"),
    ):
        state.write_text(json.dumps(values))
        mark(one)
        assert sentence(lambda: last_whole(tmp_path)) == f"{state}: not the state of a training ({words}): delete {one}"
    state.write_text(json.dumps(TRAINING_STATE))
    (one / "optimizer.pt").write_bytes(b"weights")
    mark(one)
    assert last_whole(tmp_path) == one
    assert read_state(one)["global_step"] == 2
    (one / "optimizer.pt").write_bytes(b"wEights")  # as long, and not the same
    assert last_whole(tmp_path) is None
    (tmp_path / "run.json").write_text("[]")
    found = sentence(lambda: claim(tmp_path, {"model": "a"}))
    assert found.startswith(f"{tmp_path / 'run.json'}: not what the checkpoints of a training come from: ")


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("data: a\nout: b\ndata: c\n", ", line 3: not YAML: 'data' is given twice"),
        (BOMB + "defaults: *a11\nruns: []\n", ": not YAML: more than 20000 values with aliases expanded"),
        (MERGES + "defaults: *a11\nruns: []\n", ": not YAML: more than 20000 values with aliases expanded"),
        ("defaults: &d [*d]\nruns: []\n", ", line 1: not YAML: an alias refers to a value that contains it"),
        ("seed: !!int x\n", ": not YAML: a value does not fit its tag: "),
        ("seed: !!bool x\n", ": not YAML: a value does not fit its tag: "),
        ("seed: !!timestamp x\n", ": not YAML: a value does not fit its tag: "),
        ("rate: 2001-99-99\n", ": not YAML: a value does not fit its tag: "),
        ("seed: " + "9" * 5000, ": not YAML: a value does not fit its tag: "),
        ("[" * 3000, ": not YAML: nested too deeply"),
        ("x" * 300_000, ": not YAML: longer than 262144 characters"),
        ("data: \0", ": not YAML: special characters are not allowed"),
        ("data: a\nout: b\ntext: 3\n", ": text must be a text, got 3"),
        ("data: a\nout: b\nencoding: [x]\n", ": encoding must be a text, got ['x']"),
        ("data: a\nout: b\nvalidation: [x]\n", ": validation must be a fraction below 0.9 or a file, got ['x']"),
        ("data: a\nout: b\nvalidation:\n", ": validation must be a fraction below 0.9 or a file, got None"),
        ("seed: !!python/object/apply:os.getcwd []\n", ", line 1: not YAML: could not determine a constructor for"),
    ],
)
def test_hostile_yaml(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "trainings.yaml"
    path.write_text(text)
    assert sentence(lambda: read_jobs(path)).startswith(f"{path}{words}")


def test_yaml_with_aliases_and_merges_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trainings.yaml"
    path.write_text("runs:\n- &a {data: a, out: b, seed: 1}\n- {<<: *a, out: c}\n- {<<: *a, out: d, seed: 2}\n")
    assert [(job.out, job.settings.seed) for job in read_jobs(path)] == [("b", 1), ("c", 1), ("d", 2)]


def test_damaged_calibrations(space: Workspace) -> None:
    stored = json.loads((space.model / "calibration.json").read_text())
    for changes in ({"bins": [{**stored["bins"][0], "keep": "x"}]}, {"bins": 3}, {"trace": [3]}, {"settings": 3}):
        found = sentence(lambda changes=changes: Calibration.from_dict(stored | changes))  # type: ignore[misc]
        assert found.startswith(("a calibration must have its fields: ", "an evaluation must have the fields "))


NO_RECORDS: list[dict[str, Any]] = [
    {"row": "x"}, {"row": 2**70}, {"row": None}, {"id": 3}, {"votes": [3]}, {"votes": None}, {"radius": None},
    {"radius": 0.5}, {"p1": "x"}, {"abstained": 1}, {"look_alphas": [None]}, {"id": "\ud800"}, {"seconds": "x"},
    {"problem": 3}, {"calls": True},
]  # fmt: skip


def test_records_of_a_store_that_are_none_are_passed_over(space: Workspace) -> None:
    row = space.rows[1] | {"seconds": 0.1}
    number = row["row"]
    assert list(run_records([(number, row)])) == [row]
    assert list(run_records([(number + 1, row)])) == []
    for changes in NO_RECORDS:
        assert list(run_records([(number, row | changes)])) == []
    for other in (None, [row], "x", 3, {name: row[name] for name in row if name != "radius"}):
        assert list(run_records([(number, other)])) == []
    folder = space.copy(space.stopped, "stopped")
    with open_store(folder) as store:
        store.put(99, {"row": 5})
        store.put(100, [])
        store.put(number, row | {"votes": None})
    assert read_run(folder).table["row"].to_pylist() == [1, 3]
    assert run("certify", space.model, "--data", space.data, "--limit", 3, "--out", folder) == 0
    assert read_run(folder).table.equals(read_run(space.run).table)


def test_a_manifest_of_odd_types_is_not_gone_on_with(space: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    for changes in ({"sessions": 3}, {"limit": "x"}, {"data": [1]}, {"alpha": None}):
        folder = space.copy(space.stopped, "stopped")
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        capsys.readouterr()
        assert run("certify", space.model, "--data", space.data, "--limit", 3, "--out", folder) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"adaptdel: {path}: ")
        assert f"{next(iter(changes))} must " in err


def test_a_model_of_any_unit_and_noise_is_loaded(tmp_path: Path) -> None:
    kinds: list[dict[str, Any]] = [{"unit": "char"}, {"unit": "chunk:3"}, {"ops": ("del",)}, {"threshold": 0.3}]
    for number, settings in enumerate(kinds):
        folder = make_model(tmp_path / str(number), Deletion(FixedRate(0.5)), **settings)
        assert SmoothedClassifier.load(folder).certify(["w1 w2"])[0].length in (2, 5)
