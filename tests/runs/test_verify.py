"""Verifying a run: what is refused though its digests fit; recertify refuses what verify refuses."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from adaptdel import Deletion, FixedRate, Masking, NoNoise
from adaptdel.core.noise import Noise
from adaptdel.models.model_files import load_model
from adaptdel.runs.certify import verify_with_model
from adaptdel.runs.columns import OPTIONAL, TOTALLED, Totals, certificate_of, record_of
from adaptdel.runs.inputs import Source
from adaptdel.runs.storage import MANIFEST, TABLE, read_run
from tests.run_files import examples, forge_rows, make_data, make_exact, make_model, rewrite, run, write_rows
from tests.runs.conftest import KINDS

Values = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a file with rows that cannot be used, and runs of both kinds of sampling."""
    folder = tmp_path_factory.mktemp("runs")
    make_model(folder / "model")
    rows: list[Any] = [{"text": text, "label": label} for text, label in examples(20, 2)]
    write_rows(folder / "test.jsonl", [*rows, {"text": 7}, *rows[:2], {"text": "w1 w2"}])
    for name, options in {"adaptive": [], "fixed": ["--set", "sampling=fixed"]}.items():
        out = folder / name
        assert run("certify", folder / "model", "--data", folder / "test.jsonl", "--out", out, *options) == 1
    return folder


@pytest.fixture
def out(tmp_path: Path, folder: Path) -> Path:
    """A copy of the run with adaptive sampling."""
    return Path(shutil.copytree(folder / "adaptive", tmp_path / "run"))


def forge(out: Path, change: Callable[[list[Values]], Any]) -> None:
    """Change the rows; all digests and the totals fit."""
    found = read_run(out)
    rows = list(found.records())
    change(rows)
    totals = Totals.of(found.manifest)
    for row in rows:
        totals.add(row)
    forge_rows(out, rows)
    rewrite(out, lambda manifest: manifest.update(totals=totals.to_dict()))


def chosen(rows: list[Values]) -> Values:
    """A row that was sampled in several looks and has a radius."""
    return next(row for row in rows if row["radius"] and row["radius"] > 0 and len(row["votes"]) > 1)


def derive(out: Path, row: Values) -> None:
    """Fill in what follows from forged votes."""
    certificate = certificate_of(read_run(out).manifest, row)
    row.update(record_of(certificate, id=row["id"], row=row["row"], label=json.loads(row["truth"])))


def refused(out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What verify says of a run that does not hold."""
    capsys.readouterr()
    assert run("verify", out) == 1
    return capsys.readouterr().out


def test_a_run_of_few_votes_samples_what_takes_more_copies(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": " ".join([word] * length), "label": 0} for length in range(7, 13) for word in ("w1", "w150")]
    data, out = write_rows(tmp_path / "short.jsonl", rows), tmp_path / "run"
    assert run("certify", folder / "model", "--data", data, "--out", out, "--votes", "64,256") == 0
    found = list(read_run(out).records())
    assert {row["length"] for row in found if row["copies"] is not None} == {7, 8}
    assert all(row["calls"] <= 320 for row in found)
    assert run("verify", out) == 0
    rewrite(out, lambda manifest: manifest["plan"].update(n_estimate=600))
    assert "an input of 9 tokens is enumerated under adaptive sampling, not sampled" in refused(out, capsys)


def test_a_run_that_is_written_again_holds(out: Path) -> None:
    forge(out, lambda rows: None)
    assert run("verify", out) == 0


def test_rows_that_were_cut_or_dropped(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last session still counts all rows."""
    manifest = (out / MANIFEST).read_text()
    forge(out, lambda rows: rows.__delitem__(slice(-5, None)))
    rewrite(out, lambda values: values.update(sessions=json.loads(manifest)["sessions"]))
    assert run("verify", out) == 2
    assert "last session 24" in capsys.readouterr().err
    rewrite(out, lambda values: values.update(rows=24))
    assert "counts 24 rows, there are 19" in refused(out, capsys)
    assert run("recertify", out, "--out", out.parent / "new") == 2
    assert not (out.parent / "new").exists()
    forge(out, lambda rows: rows.__delitem__(3))
    assert "rows are missing" in refused(out, capsys)


def test_rows_that_take_too_much_work_are_not_checked(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are not said to be wrong, and neither are the totals, which cannot be compared without them."""
    capsys.readouterr()
    assert run("verify", out, "--work", "1") == 1
    printed = capsys.readouterr().out
    assert re.match(r"row 1: not checked: .* --work", printed)
    assert not re.search("does not hold|the totals", printed)
    assert re.search("0 of 23 certificates hold, .*; 23 not checked", printed)


def test_a_row_that_was_copied_over_another(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forge(out, lambda rows: rows[1].update(rows[3], row=2))
    assert "row 2 has the id of another row" in refused(out, capsys)


def test_totals_are_compared_with_all_their_fields(folder: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    totals: Any = read_run(out).manifest.totals
    for name in totals:
        rewrite(out, lambda manifest: manifest.update(totals={n: v for n, v in totals.items() if n != name}))  # noqa: B023
        assert f"the totals state {name} = 'nothing'" in refused(out, capsys)
        rewrite(out, lambda manifest: manifest.update(totals=totals | {name: 99}))  # noqa: B023
        assert f"the totals state {name} = 99" in refused(out, capsys)
    rewrite(out, lambda manifest: manifest.update(totals=totals | {"checked": "by experts"}))
    assert "checked" in refused(out, capsys)
    rewrite(out, lambda manifest: manifest.update(totals=totals | {"warnings": 1, "abstained": 99}))
    model, data = (folder / name for name in ("model", "test.jsonl"))
    assert run("certify", model, "--data", data, "--out", out, "--json") == 1  # states what the rows say
    assert json.loads(capsys.readouterr().out).items() >= totals.items()


@pytest.mark.parametrize("name", [MANIFEST, TABLE])
def test_files_of_a_run_must_be_regular(out: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (out / name).unlink()
    os.mkfifo(out / name)
    assert run("status", out) == 2
    assert f"{out / name}: not a regular file" in capsys.readouterr().err


# What follows from the model and the text alone: other values can be those of another input.
FREE = ("length", "input_hash", "scores")


@pytest.fixture(scope="module")
def many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a kind of evidence, with rows of every class."""
    folder = tmp_path_factory.mktemp("many")
    KINDS[request.param](folder / "model", labels=("a", "b", "c"))
    rows = [{"text": text, "label": label} for text, label in examples(40, 4, ("a", "b", "c"))]
    data = write_rows(folder / "data.jsonl", rows)
    assert run("certify", folder / "model", "--data", data, "--out", folder / "run") == 0
    assert run("verify", folder / "run") == 0
    return folder / "run"


@pytest.mark.parametrize("many", KINDS, indirect=True)
def test_no_column_can_be_changed_alone(many: Path, tmp_path: Path) -> None:
    """Whatever the kind of evidence: raised, emptied or of another type."""
    found = read_run(many)
    names = [name for name in found.table.column_names if name not in FREE]
    for name in names:
        for change in (raised, lambda value: None):
            out = Path(shutil.copytree(many, tmp_path / "run", dirs_exist_ok=True))
            rows = list(found.records())
            row = max((row for row in rows if row["correct"]), key=lambda row: row["radius"])
            if row[name] is None or (change is not raised and name in OPTIONAL):
                continue
            row[name] = change(row[name])
            forge_rows(out, rows)
            assert run("verify", out) != 0, (name, change)


def raised(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, list):
        return [raised(value[0]), *value[1:]] if value else [1]
    return f"x{value}" if isinstance(value, str) else value + 1


def test_understated_values(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lower(rows: list[Values]) -> None:
        for row in rows:
            if row["problem"] is None:
                row.update(radius=-1, abstained=True)

    forge(out, lower)
    assert "radius is -1, not" in refused(out, capsys)
    assert run("recertify", out, "--out", out.parent / "new", "--alpha", "0.04") == 2
    assert "radius is -1" in capsys.readouterr().err


def test_looks_that_are_not_those_of_the_plan(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def check(words: str, change: Callable[[Values], None]) -> None:
        copy = Path(shutil.copytree(out, out.parent / words.replace(" ", "-")))

        def forged(rows: list[Values]) -> None:
            row = chosen(rows)
            change(row)
            derive(copy, row)

        forge(copy, forged)
        assert words in refused(copy, capsys)

    def one_look(row: Values) -> None:
        row.update(look_sizes=[row["look_sizes"][len(row["votes"]) - 1]], votes=row["votes"][-1:], look_alphas=[0.05])

    def first_look(row: Values) -> None:
        last = len(row["look_alphas"]) - 1
        row["look_alphas"] = [0.049, *[0.001 / last] * last]

    def drop_later(row: Values) -> None:
        row["votes"] = row["votes"][:-1]

    def longer_selection(row: Values) -> None:
        row["selection"][json.loads(row["answer"])] += 1

    check("looks were planned after", one_look)
    check("levels of the looks are not in the proportions", first_look)
    check("sampling ended after look", drop_later)
    check("votes, which is not planned for", longer_selection)


def test_digests_are_checked_before_anything_is_derived(
    folder: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every flipped bit is noticed, by each command that reads a finished run."""
    data = (out / TABLE).read_bytes()
    rng = random.Random(0)
    certify = ("certify", folder / "model", "--data", folder / "test.jsonl", "--limit")
    assert run(*certify, 5, "--out", out.parent / "few") == 0
    few = (out.parent / "few" / TABLE).read_bytes()
    for number in range(40):
        place, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        (out / TABLE).write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        commands: list[tuple[Any, ...]] = [("verify", out)]
        if not number:
            (out.parent / "few" / TABLE).write_bytes(few[:99] + bytes([few[99] ^ bit]) + few[100:])
            commands += [
                ("recertify", out, "--out", out.parent / "new"),
                ("report", out, "--out", out.parent / "report"),
                (*certify, 6, "--out", out.parent / "few"),
            ]
        for command in commands:
            capsys.readouterr()
            assert run(*command) == 2
            error = capsys.readouterr().err
            assert f"{TABLE}: not the file that the manifest of the run states" in error
            assert error.count("\n") == 1


def test_votes_that_verify_refuses_are_not_recertified(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The digest of the file fits."""
    rows = list(read_run(out).records())
    row = chosen(rows)
    row["votes"][-1] = [sum(row["votes"][-1]) if n == json.loads(row["answer"]) else 0 for n in range(2)]
    forge_rows(out, rows)
    assert f"row {row['row']}: does not hold" in refused(out, capsys)
    assert run("recertify", out, "--out", out.parent / "new", "--threat", "ins") == 2
    assert f"row {row['row']}: " in capsys.readouterr().err
    assert not (out.parent / "new").exists()


def test_other_settings_than_those_of_the_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("n_estimate", 401), ("sampling", "adaptive"), ("alpha", 0.04), ("limit", 5)):
        out = Path(shutil.copytree(folder / "fixed", tmp_path / name))
        rewrite(out, lambda manifest: (manifest if name == "limit" else manifest["plan"]).update({name: value}))  # noqa: B023
        assert "does not hold" in refused(out, capsys)


def test_recertified_runs_follow_the_plan_of_their_source(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = [folder / "adaptive", *(tmp_path / name for name in "abcd")]
    steps: list[list[object]] = [
        ["--alpha", 0.01, "--threat", "ins"], ["--threat", "sub"], ["--alpha", 0.3], ["--bound", "paper"],
    ]  # fmt: skip
    for number, options in enumerate(steps):
        assert run("recertify", chain[number], "--out", chain[number + 1], *options) == 0
    for out in chain:
        assert run("verify", out) == 0
    plan: Any = read_run(chain[-1]).manifest.plan
    assert plan.sampled == read_run(chain[0]).manifest.plan
    rewrite(chain[-1], lambda manifest: manifest["plan"]["sampled"].update(alpha=0.0001))
    assert "looks were planned after " in refused(chain[-1], capsys)


@pytest.mark.parametrize("name", ["settings", "data"])
def test_a_training_that_is_none(out: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    rewrite(out, lambda manifest: manifest["model"].update(training={name: 7}))
    assert run("report", out, "--out", out.parent / "report") == 2
    assert f"{name} must be an object, got 7" in capsys.readouterr().err


def test_mutated_manifests_get_one_sentence(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every field is removed and replaced; status, verify and report answer, or refuse in one sentence."""
    whole = json.loads((out / MANIFEST).read_text())
    rng = random.Random(1)
    odd: list[Any] = [
        None, True, -1, 0, 2**70, 1.5, 1e400, "", "x", "2026-01-31T12:00:00", "\ud800", [], [None], {},
        {"kind": 3}, "\0",
    ]  # fmt: skip
    mutants = []
    for path in paths(whole):
        gone = deepcopy(whole)
        del holder(gone, path)[path[-1]]
        mutants.append(gone)
        for value in rng.sample(odd, 3):
            changed = deepcopy(whole)
            holder(changed, path)[path[-1]] = value
            mutants.append(changed)
    assert len(mutants) > 300
    statuses = set()
    for number, mutant in enumerate(mutants):
        (out / MANIFEST).write_text(json.dumps(mutant))
        commands: list[tuple[Any, ...]] = [("status", out), ("verify", out)]
        if number % 20 == 0:
            commands.append(("report", out, "--out", out.parent / f"report{number}"))
        for command in commands:
            capsys.readouterr()
            status = run(*command)
            error = capsys.readouterr().err
            statuses.add(status)
            assert status in (0, 1, 2)
            assert "Traceback" not in error
            if status == 2:
                assert error.count("\n") == 1
                assert str(out) in error
    assert statuses == {0, 1, 2}


def paths(values: Any, start: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the values of a manifest are, of the totals only the first."""
    if start[:1] == ("totals",) and len(start) > 1:
        return []
    keys = list(values) if isinstance(values, dict) else range(len(values)) if isinstance(values, list) else []
    return [path for key in keys for path in [(*start, key), *paths(values[key], (*start, key))]]


def holder(values: Any, path: tuple[Any, ...]) -> Any:
    for key in path[:-1]:
        values = values[key]
    return values


ILL: list[tuple[str, Any]] = [
    *((name, None) for name in ("answer", "length", "selection", "votes", "radius", "input_hash")),
    ("votes", [[1, None]]), ("votes", [None]), ("votes", []), ("votes", [[-1, 1]]), ("selection", [3]),
    ("look_sizes", [None]), ("look_alphas", [float("nan")]), ("copies", [[None]]), ("answer", "nonsense"),
    ("answer", "[[["), ("length", -1), ("length", 5 * 10**12), ("input_hash", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), ILL)
def test_ill_typed_rows(out: Path, capsys: pytest.CaptureFixture[str], name: str, value: Any) -> None:
    rows = list(read_run(out).records())
    row = next(row for row in rows if row["problem"] is None and row["copies"] is None and row["radius"] > 0)
    row[name] = value
    forge_rows(out, rows)
    start = time.process_time()
    assert run("verify", out, "--work", 10**6) == 1
    printed = capsys.readouterr().out
    assert re.match(rf"row {row['row']}: (does not hold|not checked): ", printed)
    assert "22 of 23 certificates hold" in printed
    assert run("status", out) == (2 if value is None and name in TOTALLED else 0)
    assert run("recertify", out, "--out", out.parent / "new", "--work", 10**6) == 2
    error = capsys.readouterr().err.splitlines(keepends=True)[-1]
    assert error.startswith(f"adaptdel: {out / TABLE}, row {row['row']}: ")
    assert error.count("\n") == 1
    assert time.process_time() - start < 60


def test_rows_that_do_not_go_together(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = read_run(out)

    def check(words: str, change: Callable[[list[Values]], None]) -> None:
        rows = deepcopy(list(found.records()))
        change(rows)
        forge_rows(out, rows)
        assert words in refused(out, capsys)

    own = ("id", "row", "truth", "correct", "input_hash")

    def another(rows: list[Values]) -> None:  # the first two texts are there again, in rows 22 and 23
        other = next(row for row in rows[3:] if (row["answer"], row["truth"]) == (rows[0]["answer"], rows[0]["truth"]))
        rows[21].update({name: value for name, value in other.items() if name not in own})

    check("another row has other votes", another)
    check("a row with a problem must have no radius", lambda rows: rows[20].update(radius=3))
    check("is not one of the classes", lambda rows: rows[0].update(truth='"spam"', correct=False))
    check("out of order", lambda rows: rows[0].update(row=0))
    check("input_hash must not be empty", lambda rows: rows[3].update(input_hash=""))
    check("radius", lambda rows: rows[3].update(radius=2**62))


def test_runs_of_the_honest(tmp_path: Path) -> None:
    """All kinds of runs hold as they are written."""
    data = make_data(tmp_path / "test.jsonl", 12)
    noises: list[Noise] = [NoNoise(), Masking(0.7), Deletion(FixedRate(0.9)), Deletion(FixedRate(0.0)), Masking(1.0)]
    for number, noise in enumerate(noises):
        model = make_model(tmp_path / f"model{number}", noise)
        for sampling in ("adaptive", "fixed"):
            option = f"sampling={sampling}"
            out = tmp_path / f"run{number}{sampling}"
            assert run("certify", model, "--data", data, "--out", out, "--set", option, "--limit", 7) == 0
            assert run("verify", out) == 0
            assert run("certify", model, "--data", data, "--out", out, "--set", option) == 0
            assert run("verify", out) == 0
    labels = ("a", "b", "c")
    rows = [{"text": text, "label": label} for text, label in examples(12, 3, labels)]
    data = write_rows(tmp_path / "many.jsonl", rows)
    model = make_model(tmp_path / "many", labels=labels)
    assert run("certify", model, "--data", data, "--out", tmp_path / "out", "--alpha", 0.2) == 0
    assert run("verify", tmp_path / "out") == 0
    model = make_model(tmp_path / "threshold", threshold=0.3)
    assert run("certify", model, "--data", make_data(tmp_path / "two.jsonl", 12), "--out", tmp_path / "two") == 0
    assert run("verify", tmp_path / "two") == 0
    assert pq.read_table(tmp_path / "two" / TABLE).num_rows == 12


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that protects a class, data and a run of exact certificates against deletions."""
    folder = tmp_path_factory.mktemp("exact")
    make_exact(folder / "model")
    data = make_data(folder / "data.jsonl", 90, 3)
    protect = ("protect", folder / "model", "--class", 1, "--max-false-positives", 0.2, "--data", data)
    assert run(*protect, "--out", folder / "protected") == 0
    make_data(folder / "test.jsonl", 30)
    certify = ("certify", folder / "protected", "--data", folder / "test.jsonl", "--out", folder / "run")
    assert run(*certify, "--threat", "del", "--set", "threshold=-10000000") == 0
    return folder


def test_verify_with_the_model(exact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The integers follow from weights and texts; what else the model has is named."""
    assert "protects" not in capsys.readouterr().out
    out = Path(shutil.copytree(exact / "run", tmp_path / "run"))
    verified = ("verify", out, "--model", exact / "protected")
    assert run(*verified) == 0
    said = capsys.readouterr().err
    assert "the certificates are for threshold = -10000000, the model has" in said
    assert "for threat = " in said
    other = tmp_path / "other.jsonl"
    other.write_text((exact / "test.jsonl").read_text().replace(" w150", " w1"))
    assert run(*verified, "--data", other) == 1
    assert "its text is not that of the data" in capsys.readouterr().out
    other.write_text("\n".join((exact / "test.jsonl").read_text().splitlines()[:-1]))
    assert run(*verified, "--data", other) == 1
    assert "the run: does not hold: its rows are not those of the data" in capsys.readouterr().out
    rewrite(out, lambda manifest: manifest["model"].update(protects="1"))
    assert run(*verified) == 1
    assert "it states that it protects '1'" in capsys.readouterr().out
    stranger = load_model(make_exact(tmp_path / "stranger", l2=3.0))
    with pytest.raises(ValueError, match="another model"):
        list(verify_with_model(read_run(out), stranger, Source((str(other),))))


def test_a_row_cannot_choose_what_an_edit_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan says how many tokens have a score together, and every length has to fit."""
    make_exact(tmp_path / "model", unit="char", ngram=5)
    data, out = make_data(tmp_path / "data.jsonl", 9), tmp_path / "run"
    assert run("certify", tmp_path / "model", "--data", data, "--out", out) == run("verify", out) == 0
    rewrite(out, lambda manifest: manifest["plan"].update(ngram=1))
    assert "0 of 9 certificates hold" in refused(out, capsys)
