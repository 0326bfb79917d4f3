"""Runs: the same whatever the number of workers, refused if something differs, honest about bad rows."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import adaptdel as ad
from adaptdel import Deletion, FixedRate, Masking, NoNoise
from adaptdel.models.estimator import TextEstimator
from adaptdel.runs.certify import evaluate
from adaptdel.runs.storage import read_run
from adaptdel.store import locked
from adaptdel.text.data import DrawnRows, read_rows
from tests.run_files import Terminal, examples, make_data, make_exact, make_model, picky, rewrite, run, write_rows


def table_bytes(folder: Path) -> bytes:
    return (folder / "certificates.parquet").read_bytes()


VOTES = pytest.mark.parametrize("model", ["votes"], indirect=True)


@pytest.mark.parametrize("noise", [None, Masking(0.7), NoNoise(), Deletion(FixedRate(0.9)), "exact"])
def test_a_run_holds_what_the_model_certifies(tmp_path: Path, noise: Any) -> None:
    folder, data = tmp_path / "model", make_data(tmp_path / "test.jsonl", 30)
    if noise == "exact":
        make_exact(folder)
    else:
        make_model(folder, noise)
    assert run("certify", folder, "--data", data, "--out", tmp_path / "run") == 0
    found = read_run(tmp_path / "run")
    rows = list(read_rows(data))
    expected = ad.load(folder).certify([row.text for row in rows])
    assert [c.to_dict() for c in found.certificates()] == [c.to_dict() for c in expected]
    for name in ("radius", "character_radius", "abstained", "calls", "length", "input_hash"):
        assert [getattr(c, name) for c in expected] == found.table[name].to_pylist()
    assert found.table["row"].to_pylist() == list(range(1, 31))
    assert found.table["truth"].to_pylist() == [json.dumps(row.label) for row in rows]
    assert found.table["correct"].to_pylist() == [c.label == r.label for c, r in zip(expected, rows, strict=True)]
    assert found.manifest.model_hash == expected[0].model_hash
    assert found.finished
    assert (found.manifest.seconds or 0) > 0
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["certificates.parquet", "manifest.json"]


def test_memory_workers_and_interruptions_do_not_matter(tmp_path: Path, model: Path, data: Path, whole: Path) -> None:
    class Killed(Exception):
        pass

    def killed(done: int, total: int) -> None:
        if done == 40:
            raise Killed

    with pytest.raises(Killed):
        evaluate(model, data, out=tmp_path / "resumed", progress=killed)
    assert run("verify", tmp_path / "resumed") == 0
    calls: list[tuple[Any, dict[str, Any]]] = [("workers", {"workers": 2}), ("memory", {}), ("resumed", {})]
    for name, options in calls:
        given = ad.load(model) if name == "memory" else model
        evaluate(given, data, out=tmp_path / name, progress=False, **options)
        assert table_bytes(tmp_path / name) == table_bytes(whole), name


def test_a_finished_run_is_left_alone(model: Path, data: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in whole.iterdir()}
    assert run("certify", model, "--data", data, "--out", whole) == 0
    captured = capsys.readouterr()
    assert "the run is finished already" in captured.err
    rows = read_run(whole).table.select(["correct", "radius"]).to_pylist()
    right = sum(row["correct"] and row["radius"] >= 1 for row in rows)
    assert 0 < right < 60
    assert captured.out.startswith(f"{right} of 60 inputs ")
    assert {path.name: path.stat().st_mtime_ns for path in whole.iterdir()} == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--threat", "ins"], "threat was edit, now ins"),
        (["--limit", 3], "the limit was None, now 3, and can only be raised"),
        (["--seed", 7, "--alpha", 0.01], "alpha was 0.05, now 0.01; seed was 0, now 7"),
    ],
)
def test_another_setting_is_refused(
    model: Path, data: Path, whole: Path, capsys: pytest.CaptureFixture[str], options: list[Any], words: str
) -> None:
    before = table_bytes(whole)
    if model.name == "scores" and "--seed" in options:
        words = "has no meaning for a model of the kind additive: choose from ops, threshold"
    assert run("certify", model, "--data", data, "--out", whole, *options) == 2
    error = capsys.readouterr().err
    assert error.startswith("adaptdel: ")
    assert words in error
    assert error.count("\n") == 1
    assert table_bytes(whole) == before


def test_another_model_or_data_is_refused(
    tmp_path: Path, model: Path, data: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = make_model(tmp_path / "model", Deletion(FixedRate(0.9)))
    assert run("certify", other, "--data", data, "--out", whole) == 2
    assert "model_hash was" in capsys.readouterr().err
    assert run("certify", model, "--data", make_data(tmp_path / "test.jsonl", seed=9), "--out", whole) == 2
    assert "test.jsonl, row 1: not what was certified: the data were changed" in capsys.readouterr().err
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(data.read_bytes())
    assert run("certify", model, "--data", moved, "--out", whole) == 0


def test_the_limit_can_be_raised(tmp_path: Path, model: Path, data: Path, whole: Path) -> None:
    out = tmp_path / "run"
    for limit, rows in ((10, 10), (25, 25), (99, 60)):
        assert run("certify", model, "--data", data, "--out", out, "--limit", limit) == 0
        assert read_run(out).table.equals(read_run(whole).table.slice(0, rows))
    assert run("certify", model, "--data", data, "--out", out) == 0
    assert table_bytes(out) == table_bytes(whole)


def test_a_sample_is_drawn_with_the_seed(tmp_path: Path, model: Path, data: Path, whole: Path) -> None:
    out = tmp_path / "run"
    assert run("certify", model, "--data", data, "--out", out, "--sample", 20) == 0
    found = read_run(out)
    rows = found.table["row"].to_pylist()
    assert len(set(rows)) == 20
    assert rows == sorted(rows) != list(range(1, 21))
    assert found.table.equals(read_run(whole).table.take([row - 1 for row in rows]))
    assert found.manifest.data.sample == DrawnRows(20, seed=0)
    assert run("verify", out) == run("report", out, "--out", tmp_path / "report") == 0
    others = tmp_path / "others"
    shutil.copytree(out, others)
    rewrite(others, lambda manifest: manifest["data"]["sample"].update(seed=1))
    assert run("verify", others) == 1  # rows that were not drawn
    assert run("certify", model, "--data", data, "--out", out, "--sample", 21) == 2
    assert run("certify", model, "--data", data, "--out", out) == 2
    assert run("certify", model, "--data", data, "--out", tmp_path / "both", "--sample", 5, "--limit", 5) == 2
    assert run("certify", model, "--data", data, "--out", tmp_path / "other", "--sample", 20, "--seed", 1) == 0
    assert read_run(tmp_path / "other").table["row"].to_pylist() != rows


@VOTES
def test_the_paper_s_settings(tmp_path: Path, model: Path, data: Path) -> None:
    """As printed, with half of alpha for each bound; an option replaces a setting."""
    three = make_model(tmp_path / "three", labels=("a", "b", "c"))
    names = write_rows(tmp_path / "three.jsonl", [{"text": "w1 w2", "label": "a"}])
    for folder, file, alpha in ((model, data, 0.025), (three, names, 0.05)):
        out = tmp_path / f"run-{alpha}"
        assert run("certify", folder, "--data", file, "--out", out, "--settings", "paper", "--limit", 1) == 0
        chosen = read_run(out).manifest
        printed = {"alpha": alpha, "n_select": 1000, "n_estimate": 4000, "sampling": "fixed", "bound": "paper"}
        assert {name: getattr(chosen.plan, name) for name in printed} == printed
    out = tmp_path / "own"
    options = ["--settings", "paper", "--limit", 1, "--alpha", 0.05, "--votes", "10,40"]
    assert run("certify", model, "--data", data, "--out", out, *options) == 0
    plan: Any = read_run(out).manifest.plan
    assert (plan.alpha, plan.n_select, plan.n_estimate) == (0.05, 10, 40)


BAD_ROWS: list[tuple[Any, str]] = [
    (b'{"text": "w1 w2", "label": 0', "not JSON"),
    ({"text": 7, "label": 1}, "the column 'text' must hold text"),
    ({"text": "w1", "label": 2}, "the label 2 is not among the model's classes 0, 1"),
]


@pytest.mark.parametrize(("bad", "words"), BAD_ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_bad_row_is_noted_and_the_rest_goes_on(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], bad: Any, words: str
) -> None:
    good = [{"text": text, "label": label} for text, label in examples(9)]
    data = write_rows(tmp_path / "test.jsonl", [*good[:4], bad, *good[4:], bad])
    out = tmp_path / "run"
    assert run("certify", model, "--data", data, "--out", out) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"note: {data}, row 5: ")
    assert words in error
    assert error.endswith(", and 1 more such rows: not certified\n")
    found = read_run(out)
    problems = found.table["problem"].to_pylist()
    assert [place for place, problem in enumerate(problems) if problem] == [4, 10]
    assert all(words in problem for problem in problems if problem)
    assert len(list(found.certificates())) == 9
    assert (found.manifest.totals or {})["problems"] == 2
    assert run("certify", model, "--data", data, "--out", out) == 1
    assert "finished already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("test.csv", b"text,label\n", "holds no rows"),
        ("test.jsonl", b'{"txt": "a"}\n' * 5, "none of the 5 rows can be used; row 1: no column 'text': did you mean"),
        ("test.jsonl", b'{"text": "a", "label": 5}\n' * 5, "none of the 5 rows can be used; row 1: the label 5 is not"),
        ("test.csv", b"text,label\na,0\nb\nc,1,2\n", None),
    ],
)  # fmt: skip
def test_bad_files(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, words: str | None
) -> None:
    data = tmp_path / name
    data.write_bytes(content)
    status = run("certify", model, "--data", data, "--out", tmp_path / "run")
    error = capsys.readouterr().err
    if words is None:
        assert status == 1
        assert "row 2: must have 2 fields as the header has, got 1, and 1 more" in error
        assert read_run(tmp_path / "run").table["problem"].null_count == 1
    else:
        assert status == 2
        assert error.startswith(f"adaptdel: {data}")
        assert words in error
        assert error.count("\n") == 1
        assert not list((tmp_path / "run").glob("*")) if (tmp_path / "run").exists() else True


def test_bad_arguments(tmp_path: Path, model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "letter.txt").write_text("dear")
    new = tmp_path / "run"
    for arguments, word in (
        ([tmp_path / "none", "--data", data, "--out", new], "none"),
        ([model, "--data", tmp_path / "none.jsonl", "--out", new], "none.jsonl"),
        ([model, "--data", data, "--out", full], "letter.txt"),
        ([model, "--data", data, "--out", data], "must be a folder"),
        ([model, "--data", data, "--out", new, "--threat", "swap"], "--threat must be"),
        ([model, "--data", data, "--out", new, "--votes", "9"], "votes"),
        ([model, "--data", data, "--out", new, "--limit", 0], "limit"),
        ([model, "--data", data, "--out", new, "--text-column", "txt"], "row 1: no column 'txt'"),
    ):
        assert run("certify", *arguments) == 2
        error = capsys.readouterr().err
        assert word in error
        assert error.count("\n") == 1


def test_an_input_of_a_million_words(tmp_path: Path, model: Path) -> None:
    rows = [{"text": "w1 " * 10**6, "label": 0}, {"text": "", "label": 0}, {"text": "w1 w2", "label": 0}]
    data = write_rows(tmp_path / "test.jsonl", rows)
    options = ["--votes", "16,32"] if model.name == "votes" else []
    assert run("certify", model, "--data", data, "--out", tmp_path / "run", *options) == 0
    assert read_run(tmp_path / "run").table["length"].to_pylist() == [10**6, 0, 2]


def test_two_runs_keep_out_of_each_others_way(
    tmp_path: Path, model: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"):
        assert run("certify", model, "--data", data, "--out", tmp_path / "run") == 2
    assert "another process is using this folder" in capsys.readouterr().err


def test_a_model_that_always_fails_stops_the_run(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned = write_rows(tmp_path / "test.jsonl", [{"text": f"poison {n}", "label": 0} for n in range(60)])
    certifier = TextEstimator.certifier
    monkeypatch.setattr(TextEstimator, "certifier", lambda self: picky(certifier(self)))
    assert run("certify", model, "--data", poisoned, "--out", tmp_path / "run") == 2
    assert "the model failed on 25 inputs in succession: cannot read row" in capsys.readouterr().err
    assert not read_run(tmp_path / "run").finished
    monkeypatch.undo()  # the model is fixed: what had a problem is tried again
    assert run("certify", model, "--data", poisoned, "--out", tmp_path / "run") == 0
    assert read_run(tmp_path / "run").table["problem"].null_count == 60


def test_recertify_gives_what_certify_gives(tmp_path: Path, model: Path, data: Path, whole: Path) -> None:
    fixed = ["--set", "sampling=fixed"] if model.name == "votes" else []  # adaptive looks depend on the attacker
    arguments = ["certify", model, "--data", data, *fixed, "--out"]
    assert run(*arguments, tmp_path / "a") == run(*arguments, tmp_path / "b", "--threat", "del") == 0
    assert run("recertify", tmp_path / "a", "--out", tmp_path / "c", "--threat", "del") == 0
    assert table_bytes(tmp_path / "b") == table_bytes(tmp_path / "c") != table_bytes(tmp_path / "a")
    assert run("verify", tmp_path / "c") == 0


@VOTES
def test_recertify(tmp_path: Path, model: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["--set", "sampling=fixed", "--data", data]
    assert run("certify", model, *fixed, "--out", tmp_path / "a") == 0
    assert run("certify", model, *fixed, "--out", tmp_path / "b", "--alpha", 0.01, "--threat", "ins") == 0
    assert run("recertify", tmp_path / "a", "--out", tmp_path / "c", "--alpha", 0.01, "--threat", "ins") == 0
    fresh, derived = (read_run(tmp_path / name) for name in "bc")
    for name in fresh.table.column_names:
        assert name == "look_alphas" or fresh.table[name].equals(derived.table[name]), name
    assert derived.manifest.source == str(tmp_path / "a")
    assert derived.manifest.plan.alpha == 0.01
    assert [c.ops for c in derived.certificates()] == [("ins",)] * 60
    assert run("verify", tmp_path / "c") == 0
    capsys.readouterr()
    assert run("recertify", tmp_path / "a", "--out", tmp_path / "c") == 2
    assert "must be a new folder" in capsys.readouterr().err
    assert run("recertify", tmp_path / "a", "--out", tmp_path / "d", "--bound", "best") == 2
    assert run("recertify", tmp_path / "none", "--out", tmp_path / "d") == 2
    assert not (tmp_path / "d").exists()


def test_progress(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a bar; a callable gets the numbers; silence elsewhere."""
    data = make_data(tmp_path / "test.jsonl", 12)
    reports: list[tuple[int, int]] = []
    evaluate(model, data, out=tmp_path / "run", limit=4, progress=False)
    evaluate(model, data, out=tmp_path / "run", progress=lambda done, total: reports.append((done, total)))
    assert reports == [(done, 12) for done in range(5, 13)]
    monkeypatch.setattr("adaptdel.progress.DELAY", 0.0)
    for number, error in enumerate((Terminal(), io.StringIO())):
        monkeypatch.setattr("sys.stderr", error)
        evaluate(model, data, out=tmp_path / f"run{number}")
        assert ("12/12 [" in error.getvalue()) == error.isatty()
    assert error.getvalue() == ""
