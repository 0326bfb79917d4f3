"""``adaptdel attack`` and ``adaptdel audit``: runs, resumption, workers, reports and bad input."""

from __future__ import annotations

import errno
import json
import pickle
import re
import shutil
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import adaptdel as ad
from adaptdel.attacks import attack_run, recipes
from adaptdel.attacks.attack_run import AttackJob, attack_data, attack_together, draw_inputs, read_attack_run
from adaptdel.attacks.edits import edit_distance
from adaptdel.attacks.outcomes import measure_attack, robustness_curves, wilson_interval
from adaptdel.attacks.recipes import AttackPlan, LocalSource
from adaptdel.attacks.tasks import AttackTask
from adaptdel.engines.engine import WorkerError
from adaptdel.engines.local import LocalEngine
from adaptdel.engines.start import EngineSettings
from adaptdel.hyperparameters import ATTACK
from adaptdel.report.attack_report import write_attack_report
from adaptdel.runs.inputs import LabelMap, Source
from adaptdel.store import Store

from ..engines.tasks import PoisonedAttack
from ..run_files import run, write_rows
from .conftest import fitted, texts

FEW = replace(ATTACK, inputs=8, queries=300, search_votes=200, verify_votes=2000)
QUICK = ("--inputs", "6", "--queries", "200")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and data."""
    place = tmp_path_factory.mktemp("attack")
    fitted(ad.Deletion(ad.FixedRate(0.7))).save(place / "model")
    rows = [{"text": text, "label": label} for text, label in texts(30, 40, seed=9)]
    write_rows(place / "test.jsonl", [*rows, {"text": "  ", "label": "ham"}])
    return place


def job(folder: Path, out: Path, **changes: Any) -> AttackJob:
    return AttackJob(folder / "model", Source(str(folder / "test.jsonl")), out, settings=FEW, **changes)


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record | {"seconds": 0} for record in records]


def test_a_run_holds_what_the_paper_reports(folder: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    result = attack_data(job(folder, tmp_path / "run"), note=notes.append, progress=False)
    assert "1 texts without words are left out" in notes[0]
    assert len(result.records) == 8
    by_row = {number: text for number, (text, _) in enumerate(texts(30, 40, seed=9), start=1)}
    measures = result.measures
    assert measures["success"] + measures["failure"] + measures["skipped"] + measures["timeout"] == 8
    assert measures["success"] >= 4
    assert measures["violations"] == 0
    for record in result.records:
        if record["outcome"] == "success":
            original, attacked = by_row[record["row"]].split(), record["text"].split()
            assert record["distance"] == edit_distance(original, attacked)
            assert record["distance"] > record["radius"]
            assert record["verified"]
            assert record["answer_after"] != record["truth"]
    again = attack_data(job(folder, tmp_path / "run"), progress=False)
    assert again.records == read_attack_run(tmp_path / "run").records
    assert again.manifest["totals"] == json.loads(json.dumps(measures))


def test_an_interrupted_run_is_resumed_and_workers_do_not_matter(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = attack_data(job(folder, tmp_path / "whole"), progress=False)
    called: list[int] = []
    attack = recipes.InputAttack.__call__

    def interrupted(self: Any, run_input: Any) -> Any:
        called.append(run_input.row)
        if len(called) == 4:
            raise KeyboardInterrupt
        return attack(self, run_input)

    monkeypatch.setattr(recipes.InputAttack, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attack_data(job(folder, tmp_path / "run"), progress=False)
    assert len(read_attack_run(tmp_path / "run").records) == 3
    resumed = attack_data(job(folder, tmp_path / "run"), progress=False)
    assert len(called) == 4 + 5  # what was stored is not attacked again
    assert without_times(resumed.records) == without_times(whole.records)
    monkeypatch.undo()
    parallel = attack_data(job(folder, tmp_path / "parallel", engine=EngineSettings(workers=2)), progress=False)
    assert without_times(parallel.records) == without_times(whole.records)


def test_several_models_are_attacked_together(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The records are those of single runs, and an interrupted run is resumed."""
    fitted(ad.Masking(0.6)).save(tmp_path / "masking")
    models = (folder / "model", tmp_path / "masking")
    data = folder / "test.jsonl"
    for model in models:
        assert run("attack", model, "--data", data, "--out", tmp_path / "alone" / model.name, *QUICK) == 0
    alone = [read_attack_run(tmp_path / "alone" / model.name) for model in models]
    command = ("attack", *models, "--data", data, "--out", tmp_path / "both", *QUICK)
    attack, attacked = recipes.InputAttack.__call__, []

    def interrupted(self: Any, run_input: Any) -> Any:
        attacked.append(run_input.row)
        if len(attacked) == 6:
            raise KeyboardInterrupt
        return attack(self, run_input)

    with monkeypatch.context() as patch:
        patch.setattr(recipes.InputAttack, "__call__", interrupted)
        assert run(*command) == 130
    assert attacked[0::2] == attacked[1::2]  # both models on one input before the next
    halves = [read_attack_run(tmp_path / "both" / model.name) for model in models]
    assert [len(half.records) for half in halves] == [3, 2]
    assert not any(half.finished for half in halves)
    capsys.readouterr()
    assert run(*command, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["attacks"]
    assert [row["model"] for row in rows] == [str(model) for model in models]
    both = [read_attack_run(tmp_path / "both" / model.name) for model in models]
    assert [without_times(run.records) for run in both] == [without_times(run.records) for run in alone]
    assert not list((tmp_path / "both").glob("*/unfinished*"))
    left_behind = tmp_path / "both" / "model" / "unfinished.sqlite"
    left_behind.write_bytes(b"")  # of a process that was killed at its very end
    assert run(*command) == 0  # finished runs are shown again
    assert not left_behind.exists()
    (tmp_path / "other").mkdir()
    shutil.copytree(folder / "model", tmp_path / "other" / "model")
    (tmp_path / "file").write_text("", encoding="utf-8")
    for more, out, message in (
        (tmp_path / "other" / "model", tmp_path / "none", "two models are called 'model'"),
        (models[1], tmp_path / "both" / "model", "holds the run of one model"),
        (models[1], tmp_path / "file" / "none", "must be a folder for the run, got a file"),
    ):
        assert run("attack", models[0], more, "--data", data, "--out", out, "--recipe", "adaptive") == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "none").exists()
    (tmp_path / "twin").symlink_to(tmp_path / "other" / "model")  # a name of its own
    twins = ("attack", models[0], tmp_path / "twin", "--data", data, "--out", tmp_path / "twins")
    with monkeypatch.context() as patch:

        def full(store: Any, number: int, record: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(Store, "put", full)
        assert run(*twins, *QUICK) == 2
        assert "the disk is full: everything attacked so far is kept" in capsys.readouterr().err
    assert run(*twins, *QUICK) == 0
    shutil.rmtree(tmp_path / "twins" / "model")
    assert run(*twins, *QUICK, "--seed", "3") == 2  # the other folder holds another run
    assert not (tmp_path / "twins" / "model").exists()
    with pytest.raises(ValueError, match="with one recipe"):
        attack_together([job(folder, tmp_path / name, recipe=name) for name in ("adaptive", "deepwordbug")])


def test_a_text_that_ends_its_local_worker(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was attacked before is kept, and the error names the rows."""
    whole = attack_data(job(folder, tmp_path / "whole"), progress=False)
    last = max(record["row"] for record in whole.records)
    two = EngineSettings(workers=2)
    monkeypatch.setattr(attack_run, "AttackTask", partial(PoisonedAttack, rows=(last,)))
    with pytest.raises(WorkerError) as caught:
        attack_data(job(folder, tmp_path / "run", engine=two), progress=False)
    assert re.fullmatch(
        rf"worker \d died \(exit status 1\) while it worked on rows {last}: everything attacked so far is kept: run "
        "the same command again",
        str(caught.value),
    )
    assert len(read_attack_run(tmp_path / "run").records) >= 5
    monkeypatch.undo()
    resumed = attack_data(job(folder, tmp_path / "run", engine=two), progress=False)
    assert without_times(resumed.records) == without_times(whole.records)


def test_workers_need_neither_the_data_nor_the_folders(folder: Path, tmp_path: Path) -> None:
    """On a cluster without a shared file system, everything is in the task and in copies of its paths."""
    data = Source(str(folder / "test.jsonl"))
    (tmp_path / "words.txt").write_text("the")
    parts = {"stop_words": str(tmp_path / "words.txt"), "tagger": "none"}
    plan = AttackPlan(LocalSource(folder / "model"), "adaptive", FEW, data, parts)
    local = plan()
    task = AttackTask(None, local.plan_for_workers())
    assert task.paths() == (folder / "model", tmp_path / "words.txt")
    shutil.copytree(folder / "model", tmp_path / "copy")
    there = task.at({folder / "model": tmp_path / "copy", tmp_path / "words.txt": tmp_path / "1.txt"})
    sent = pickle.loads(pickle.dumps(there))
    assert sent.plan.parts == {"stop_words": str(tmp_path / "1.txt"), "tagger": "none"}
    assert not isinstance(sent.plan.vocabulary, Source)
    rows = draw_inputs(data, LabelMap(local.classes), local.model.unit, replace(FEW, inputs=2), lambda _: None)
    expected = [local(row) for row in rows]
    assert without_times([record for _, record in sent.load()(enumerate(rows))]) == without_times(expected)
    broken = replace(sent, plan=replace(sent.plan, model=replace(sent.plan.model, fingerprint="another")))
    with pytest.raises(ValueError, match="the model was changed during the run"):
        broken.load()


def test_inputs_that_ended_their_workers_are_counted_apart(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are left out of all measures, reported, and tried again if the run is resumed."""
    whole = attack_data(job(folder, tmp_path / "whole"), progress=False)
    lost = whole.records[2]["row"]
    notes: list[str] = []
    monkeypatch.setattr(attack_run, "start_engine", lambda _: LosingEngine(lost))
    result = attack_data(job(folder, tmp_path / "run"), note=notes.append, progress=False)
    assert f"row {lost}: it ended its worker 2 times: it is left out of all measures" in notes
    others = [record for record in whole.records if record["row"] != lost]
    assert {**result.measures, "mean_seconds": 0} == {**measure_attack(others), "errors": 1, "mean_seconds": 0}
    assert robustness_curves(result.records) == robustness_curves(others)
    assert read_attack_run(tmp_path / "run").records == result.records
    write_attack_report([tmp_path / "run"], tmp_path / "report")
    assert "1 input ended its workers and is left out" in (tmp_path / "report" / "report.md").read_text()

    class Interrupted(LosingEngine):
        def map(self, *arguments: Any) -> Generator[Any, None, None]:
            yield from super().map(*arguments)
            raise KeyboardInterrupt

    monkeypatch.setattr(attack_run, "start_engine", lambda _: Interrupted(lost))
    with pytest.raises(KeyboardInterrupt):
        attack_data(job(folder, tmp_path / "again"), progress=False)
    monkeypatch.undo()
    again = attack_data(job(folder, tmp_path / "again"), progress=False)
    assert without_times(again.records) == without_times(whole.records)


class LosingEngine(LocalEngine):
    """This process, where one row cannot be attacked."""

    def __init__(self, row: int) -> None:
        super().__init__()
        self.row = row

    def map(self, task: Any, items: Any, total: int | None = None) -> Generator[Any, None, None]:
        items = list(items)
        yield from super().map(task, [item for item in items if item.row != self.row], total)
        yield from (task.failed(item, "it ended its worker 2 times") for item in items if item.row == self.row)


def test_several_files(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A glob, and several names, are one data set."""
    lines = (folder / "test.jsonl").read_text().splitlines(keepends=True)
    for name, part in (("a", lines[:12]), ("b", lines[12:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part))
    results = []
    for number, data in enumerate(([folder / "test.jsonl"], [tmp_path / "*.jsonl"], [*tmp_path.glob("[ab].jsonl")])):
        named = [word for each in sorted(data) for word in ("--data", each)]
        assert run("attack", folder / "model", *named, "--out", tmp_path / str(number), *QUICK) == 0
        results.append(without_times(read_attack_run(tmp_path / str(number)).records))
    assert results[0] == results[1] == results[2]
    capsys.readouterr()


def test_the_command_and_the_report(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    common = (folder / "model", "--data", folder / "test.jsonl", "--out", out)
    assert run("attack", *common, *QUICK) == 0
    assert "robust accuracy" in capsys.readouterr().out
    assert run("attack", *common, *QUICK, "--json") == 0  # finished already
    values = json.loads(capsys.readouterr().out)
    assert values["attacks"][0]["inputs"] == 6
    assert run("attack", *common, "--inputs", "7") == 2
    assert "settings.inputs was 6, now 7" in capsys.readouterr().err
    assert run("report", out, "--out", tmp_path / "report") == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Certified radius and attacked distance" in page
    assert "<ins>" in page
    assert (tmp_path / "report" / "figures" / "bounds-0.pdf").exists()
    assert run("report", out, "--out", tmp_path / "report") == 0  # replaced
    stored = json.loads((tmp_path / "report" / "report.json").read_text())
    names = {"model", "recipe"}
    shown = {name: value for name, value in values["attacks"][0].items() if name not in names}
    assert stored["runs"][0]["measures"] == shown


def test_hostile_texts_are_escaped_in_the_report(folder: Path, tmp_path: Path) -> None:
    result = attack_data(job(folder, tmp_path / "run"), progress=False)
    chosen = next(record for record in result.records if record["outcome"] == "success")
    chosen["text"] = "<script>alert(1)</script> " + chosen["text"]
    lines = "".join(json.dumps(record) + "\n" for record in result.records)
    (tmp_path / "run" / "attacks.jsonl").write_text(lines)
    write_attack_report([tmp_path / "run"], tmp_path / "report")
    assert "<script>" not in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--recipe", "nonsense"], "recipe must be one of 'adaptive', 'clare', 'bae-i'"),
        (["--budget", "0"], "budget must be a whole number of at least 1, got 0"),
        (["--queries", "0"], "queries must be a whole number of at least 1, got 0"),
        (["--inputs", "0"], "inputs must be a whole number of at least 1, got 0"),
        (["--ops", "swap"], 'ops must be "edit" or some of "del", "ins", "sub", got \'swap\''),
        (["--workers", "0"], "workers must be a whole number of at least 1, got 0"),
        (["--ray-address", "auto"], "ray_address is only for the engine ray"),
        (["--engine", "ray", "--gpus-per-worker", "-1"], "gpus_per_worker must be at least 0"),
        (["--engine", "ray", "--ray-address", "127.0.0.1:1"], "127.0.0.1:1: no Ray cluster answers"),
        (["--vocabulary", "missing.csv"], "missing.csv"),
        (["--label-column", "nothing"], "nothing"),
    ],
)
def test_bad_input_is_one_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    out = tmp_path / "run"
    assert run("attack", folder / "model", "--data", folder / "test.jsonl", "--out", out, *arguments) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.strip().splitlines()) == 1 or "left out" in error
    assert not out.exists()


def test_bad_models_data_and_folders(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, out = folder / "test.jsonl", tmp_path / "run"
    assert run("attack", tmp_path / "none", "--data", data, "--out", out) == 2
    assert "not the folder of a model" in capsys.readouterr().err
    bytes_model = ad.SmoothedClassifier(noise=ad.Deletion(ad.FixedRate(0.5)), unit="byte", progress=False)
    bytes_model.fit(["aa", "bb"] * 5, ["a", "b"] * 5).save(tmp_path / "bytes")
    assert run("attack", tmp_path / "bytes", "--data", data, "--out", out) == 2
    assert "must be a classifier of texts" in capsys.readouterr().err
    empty = write_rows(tmp_path / "empty.jsonl", [{"text": " ", "label": "ham"}])
    assert run("attack", folder / "model", "--data", empty, "--out", out) == 2
    assert "no labelled text has words to attack" in capsys.readouterr().err
    unlabelled = write_rows(tmp_path / "unlabelled.jsonl", [{"text": "a b"}])
    assert run("attack", folder / "model", "--data", unlabelled, "--out", out) == 2
    assert "an attack needs labels" in capsys.readouterr().err
    out.mkdir()
    (out / "other.txt").write_text("x")
    assert run("attack", folder / "model", "--data", data, "--out", out) == 2
    assert "holds something that is not a run of attacks" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["other.txt"]


def test_damaged_runs_are_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attack_data(job(folder, tmp_path / "run"), progress=False)
    records = tmp_path / "run" / "attacks.jsonl"
    whole = records.read_text()
    for damaged in ("{", '{"row": 1}', whole.replace('"success"', '"victory"'), whole.replace('"row": ', '"row": "x')):
        records.write_text(damaged)
        assert run("report", tmp_path / "run", "--out", tmp_path / "report") == 2
        assert "not a record of an attack" in capsys.readouterr().err
    manifest = tmp_path / "run" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"recipe": "adaptive"', '"recipe": 3'))
    with pytest.raises(ValueError, match="recipe must be a text"):
        read_attack_run(tmp_path / "run")


def test_texts_with_other_line_separators_are_read_again(folder: Path, tmp_path: Path) -> None:
    result = attack_data(job(folder, tmp_path / "run"), progress=False)
    result.records[0]["text"] = "a\u0085b\u2028c\x1cd"
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in result.records)
    (tmp_path / "run" / "attacks.jsonl").write_text(lines, encoding="utf-8")
    assert read_attack_run(tmp_path / "run").records == result.records


def test_the_status_of_a_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = attack_data(job(folder, tmp_path / "run"), progress=False)
    assert run("status", tmp_path / "run", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["inputs"], status["attacked"], status["failures"]) == ("finished", 8, 8, 0)
    assert status["robust accuracy"] == result.measures["robust_accuracy"]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest | {"finished": None}))
    assert run("status", tmp_path / "run") == 0
    said = capsys.readouterr().out
    assert "not finished, and no process works on it" in said
    assert "robust accuracy" in said
    assert "none" in said


def test_the_measures_of_an_attack() -> None:
    def record(outcome: str, distance: int | None = None, radius: int = 2, **more: Any) -> dict[str, Any]:
        fields = {"queries": 10, "votes": 100, "seconds": 1.0, "words_changed": distance, "covered": True}
        return (
            {"outcome": outcome, "distance": distance, "radius": radius, "verified": distance is not None}
            | fields
            | more
        )

    records = [record("success", 5), record("success", 3, verified=False), record("failure"), record("timeout")]
    records += [record("skipped", radius=-1)]
    measures = measure_attack(records)
    assert measures["accuracy_before"] == 0.8
    assert measures["accuracy_after"] == 0.4
    assert measures["robust_accuracy"] == 0.5
    assert measures["verified_robust_accuracy"] == 0.75
    assert measures["mean_distance"] == 4
    assert (measures["mean_radius_of_verified"], measures["mean_distance_of_verified"]) == (2, 5)
    assert measures["violations"] == 0
    assert measure_attack([record("success", 2)])["violations"] == 1
    assert measure_attack([record("success", 2, covered=False)])["violations"] == 0
    curves = robustness_curves(records)
    assert [point["certified"] for point in curves] == [0.8, 0.8, 0.8, 0, 0, 0]
    assert [point["attacked"] for point in curves] == [0.8, 0.8, 0.8, 0.8, 0.8, 0.6]
    assert wilson_interval(0, 0) == (0.0, 1.0)
    low, high = wilson_interval(10, 10)
    assert (round(low, 4), round(high, 12)) == (0.7225, 1.0)


def certified(folder: Path, out: Path) -> Path:
    assert run("certify", folder / "model", "--data", folder / "test.jsonl", "--out", out) == 0
    return out


def test_the_audit_of_a_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = certified(folder, tmp_path / "run")
    capsys.readouterr()
    assert run("audit", out, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["certificates"] == 31
    assert values["holds"] is True
    assert values["attacked_texts"] > 0
    assert run("audit", out, "--certificates", "5", "--workers", "2") == 0
    assert "5 certificates audited" in capsys.readouterr().out


def test_forged_radii_fail_the_audit(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The radii that the table states are audited, not those that follow from the votes."""
    out = certified(folder, tmp_path / "run")
    path = out / "certificates.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("radius")
    forged = pa.array([radius + 12 for radius in table["radius"].to_pylist()], pa.int64())
    pq.write_table(table.set_column(place, table.schema.field(place), forged), path)
    capsys.readouterr()
    assert run("audit", out) == 1
    said = capsys.readouterr().out
    assert "gets another answer" in said
    assert "its text: " in said
    assert "the audit failed" in said


def test_an_audit_counts_repeated_texts_once(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of the same text have the same votes: one wrong certificate, which alpha allows, is wrong in all of them."""
    rows = [{"text": text, "label": label} for text, label in texts(30, 40, seed=9)]
    data = write_rows(tmp_path / "repeated.jsonl", [*rows, *[rows[0]] * 20])
    out = tmp_path / "run"
    assert run("certify", folder / "model", "--data", data, "--out", out) == 0
    path = out / "certificates.parquet"
    table = pq.read_table(path)
    hashes, radii = table["input_hash"].to_pylist(), table["radius"].to_pylist()
    wrong = [radius + 12 * (own == hashes[0]) for radius, own in zip(radii, hashes, strict=True)]
    place = table.schema.get_field_index("radius")
    pq.write_table(table.set_column(place, table.schema.field(place), pa.array(wrong, pa.int64())), path)
    capsys.readouterr()
    assert run("audit", out, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["certificates"], values["violations"], values["holds"]) == (30, 1, True)


def test_an_audit_of_other_data_or_another_model_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = certified(folder, tmp_path / "run")
    other = write_rows(
        tmp_path / "other.jsonl", [{"text": text, "label": label} for text, label in texts(31, 40, seed=1)]
    )
    fitted(ad.Deletion(ad.FixedRate(0.8))).save(tmp_path / "other")
    capsys.readouterr()
    for arguments, sentence in (
        (["--data", other], "not the text that the run"),
        (["--model", tmp_path / "other"], "not the model of the run"),
        (["--model", tmp_path / "nothing"], "holds no model"),
        (["--workers", "0"], "workers must be"),
        (["--certificates", "0"], "inputs must be"),
    ):
        assert run("audit", out, *arguments) == 2
        assert sentence in capsys.readouterr().err
    shutil.rmtree(out)
    assert run("audit", out) == 2
    assert "not a run" in capsys.readouterr().err


def test_unfinished_runs_are_reported_as_such(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> Iterator[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalEngine, "map", stop)
    with pytest.raises(KeyboardInterrupt):
        attack_data(job(folder, tmp_path / "run"), progress=False)
    write_attack_report([tmp_path / "run"], tmp_path / "report")
    assert "the run is not finished" in (tmp_path / "report" / "index.html").read_text()
