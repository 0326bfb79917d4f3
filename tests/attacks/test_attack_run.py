"""``adaptdel attack``: runs, resumption, workers, reports and bad input."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.attacks import attack_run
from adaptdel.attacks.adaptive import edit_distance
from adaptdel.attacks.attack_run import AttackJob, AttackTask, InputAttack, attack_data, read_attack_run
from adaptdel.attacks.outcomes import OUTCOMES, bootstrap_interval, measure_attack, robustness_curves
from adaptdel.cli import attack
from adaptdel.runs.engine import EngineSettings, ModelSource
from adaptdel.runs.inputs import Source
from adaptdel.settings import ATTACK

from ..run_files import rewrite, run, write_rows
from .conftest import additive, fitted, texts

FEW = replace(ATTACK, inputs=8, queries=300, search_votes=200, verify_votes=2000)
QUICK = ("--inputs", "6", "--set", "queries=200")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("attack")
    fitted(ad.Deletion(ad.FixedRate(0.7))).save(place / "model")
    rows = [{"text": text, "label": label} for text, label in texts(30, 40, seed=9)]
    write_rows(place / "test.jsonl", [*rows, {"text": "  ", "label": "ham"}])
    return place


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[dict[str, Any]]:
    """The records of a run in one process."""
    return without_times(attack_data(job(folder, folder / "whole"), progress=False).records)


def job(folder: Path, out: Path, **changes: Any) -> AttackJob:
    return AttackJob(folder / "model", Source((str(folder / "test.jsonl"),)), out, settings=FEW, **changes)


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record | {"seconds": 0} for record in records]


def test_a_run_holds_what_the_paper_reports(folder: Path, whole: list[dict[str, Any]]) -> None:
    by_row = {number: text for number, (text, _) in enumerate(texts(30, 40, seed=9), start=1)}
    notes: list[str] = []
    again = attack_data(job(folder, folder / "whole"), note=notes.append, progress=False)
    assert "1 texts without words are left out" in notes[0]
    assert without_times(again.records) == whole
    measures = again.measures
    assert again.manifest.totals == json.loads(json.dumps(measures))
    assert sum(measures[outcome] for outcome in OUTCOMES) == 8
    assert (measures["success"] >= 4, measures["violations"]) == (True, 0)
    for record in whole:
        if record["outcome"] == "success":
            assert record["distance"] == edit_distance(by_row[record["row"]].split(), record["text"].split())
            assert record["distance"] > record["radius"]
            assert record["verified"]
            assert record["answer_after"] != record["truth"]


def test_an_interrupted_run_is_resumed_and_workers_do_not_matter(
    folder: Path, whole: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[int] = []
    attack_one = InputAttack.__call__

    def interrupted(self: Any, run_input: Any) -> Any:
        called.append(run_input.row)
        if len(called) == 4:
            raise KeyboardInterrupt
        return attack_one(self, run_input)

    with monkeypatch.context() as patch:
        patch.setattr(InputAttack, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            attack_data(job(folder, tmp_path / "run"), progress=False)
        assert len(read_attack_run(tmp_path / "run").records) == 3
        assert run("report", tmp_path / "run", "--out", tmp_path / "report") == 0
        assert "the run is not finished" in (tmp_path / "report" / "index.html").read_text()
        resumed = attack_data(job(folder, tmp_path / "run"), progress=False)
    assert len(called) == 4 + 5  # what was stored is not attacked again
    assert without_times(resumed.records) == whole
    parallel = attack_data(job(folder, tmp_path / "parallel", engine=EngineSettings(workers=2)), progress=False)
    assert without_times(parallel.records) == whole


def test_workers_get_copies_of_the_model_and_the_parts(tmp_path: Path) -> None:
    """On a cluster without a shared file system, everything is in the task and in copies of its paths."""
    model, words = tmp_path / "model", tmp_path / "nltk"
    words.mkdir()
    task = AttackTask(ModelSource(model), "clare", parts={"nltk_data": str(words), "tagger": "none"})
    assert task.paths() == (model, words)
    sent: AttackTask = pickle.loads(pickle.dumps(task.at({model: Path("/there"), words: Path("/1")})))
    assert (sent.source, sent.parts) == (ModelSource(Path("/there")), {"nltk_data": "/1", "tagger": "none"})


def test_the_command_and_the_report(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    common = (folder / "model", "--data", folder / "test.jsonl", "--out", out)
    assert run("attack", *common, *QUICK) == 0
    said = capsys.readouterr().out
    assert "robust accuracy" in said
    assert "not broken" in said  # the curve by number of edits
    assert run("attack", *common, *QUICK, "--json") == 0  # finished already
    values = json.loads(capsys.readouterr().out)
    assert values["inputs"] == 6
    assert values["curve"][0]["certified"] <= values["curve"][0]["attacked"] == values["accuracy_before"]
    assert run("attack", *common, "--inputs", "7") == 2
    assert "inputs was 6, now 7" in capsys.readouterr().err
    for _ in range(2):  # a report is replaced
        assert run("report", out, "--out", tmp_path / "report") == 0
        assert run("report", out, "--out", tmp_path / "other", "--baseline", 1) == 2  # of certification runs
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<ins>" in page
    assert (tmp_path / "report" / "figures" / "bounds-0.pdf").exists()
    stored = json.loads((tmp_path / "report" / "report.json").read_text())
    assert stored["runs"][0]["measures"].items() <= values.items()
    other = tmp_path / "other.jsonl"  # attacked texts are shown beside the texts that were attacked, or not at all
    other.write_text((folder / "test.jsonl").read_text().replace('"text": "', '"text": "new '))
    rewrite(out, lambda manifest: manifest["data"].update(path=[str(other)]))
    assert run("report", out, "--out", tmp_path / "report") == 0
    assert "<ins>" not in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.parametrize("ops", ["edit", "del,ins"])
def test_a_text_that_the_model_knows_is_one_edit_beyond_the_radius(tmp_path: Path, ops: str) -> None:
    """No search is needed: the counterexample is the attack, within its budget."""
    model = additive()
    model.save(tmp_path / "model")
    original = texts(30, 20, seed=1)
    write_rows(tmp_path / "test.jsonl", [{"text": text, "label": label} for text, label in original])
    known = replace(job(tmp_path, tmp_path / "run", ops=ops), settings=ATTACK)
    result = attack_data(known, progress=False)
    attacked = [record for record in result.records if record["outcome"] == "success"]
    assert len(attacked) == result.measures["verified"] >= 25
    for record in attacked:
        tokens = original[record["row"] - 1][0].split()
        assert edit_distance(tokens, record["text"].split(), ops.split(",")) == record["distance"] > record["radius"]
        assert model.predict([record["text"]])[0] != record["answer"]
    assert result.measures["tight"] > 0
    budget = attacked[0]["distance"] - 1
    few = attack_data(replace(known, out=tmp_path / "few", settings=replace(ATTACK, budget=budget)), progress=False)
    kept = [record["row"] for record in few.records if record["outcome"] == "success"]
    assert kept == [record["row"] for record in attacked if record["distance"] <= budget]
    with pytest.raises(ValueError, match="vocabulary has no meaning"):
        attack_data(replace(known, vocabulary=known.source), progress=False)


def test_the_settings_of_the_paper(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """200 inputs, 100 votes a query, 3,000 queries and two hours an input, whatever the defaults are."""
    jobs: list[AttackJob] = []

    def taken(job: AttackJob, **_: Any) -> Any:
        jobs.append(job)
        raise ValueError("taken")

    monkeypatch.setattr(attack_run, "attack_data", taken)
    monkeypatch.setattr(attack, "ATTACK", replace(ATTACK, inputs=3, votes=7, queries=9, seconds=5.0))
    common = ("attack", folder / "model", "--data", folder / "test.jsonl", "--out", tmp_path / "run")
    assert run(*common, "--settings", "paper", "--recipe", "bae-i") == 2
    assert run(*common, "--settings", "paper", "--recipe", "clare", "--inputs", "20", "--set", "queries=50") == 2
    assert run(*common, "--settings", "paper") == run(*common, "--settings", "paper", "--recipe", "bae-r") == 2
    printed, changed = jobs
    assert printed.settings == replace(ATTACK, inputs=200, votes=100, queries=3000, seconds=7200.0)
    assert changed.settings == replace(printed.settings, inputs=20, queries=50)


def test_hostile_texts_are_read_again_and_escaped_in_the_report(
    folder: Path, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Also those with characters that divide lines elsewhere."""
    shutil.copytree(folder / "whole", tmp_path / "run")
    chosen = next(record for record in whole if record["outcome"] == "success")
    chosen = chosen | {"text": "<script>alert(1)</script> a\u0085b\u2028c\x1cd " + chosen["text"]}
    lost = {"id": None, "row": 31, "truth": "ham", "outcome": "error", "problem": "it ended its worker 3 times"}
    lines = [json.dumps(record, ensure_ascii=False) for record in (chosen, lost)]
    (tmp_path / "run" / "attacks.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert read_attack_run(tmp_path / "run").records == [chosen, lost]
    assert run("report", tmp_path / "run", "--out", tmp_path / "report") == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "<script>" not in page
    assert "1 input ended its workers and is left out" in page


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("--recipe nonsense", "recipe must be one of"),
        ("--budget 0", "budget"),
        ("--set queries=0", "queries"),
        ("--threat swap", "--threat must be"),
        ("--part tagger", "NAME=PATH"),
        ("--vocabulary missing.csv", "missing.csv"),
        ("--recipe textfooler --vocabulary words.csv", "vocabulary"),
    ],
)
def test_bad_input_is_one_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, word: str
) -> None:
    out = tmp_path / "run"
    assert run("attack", folder / "model", "--data", folder / "test.jsonl", "--out", out, *arguments.split()) == 2
    error = capsys.readouterr().err
    assert word in error
    assert len(error.strip().splitlines()) == 1 or "left out" in error
    assert not out.exists()


def test_damaged_runs_are_refused(folder: Path, whole: list[dict[str, Any]], tmp_path: Path) -> None:
    shutil.copytree(folder / "whole", tmp_path / "run")
    records = tmp_path / "run" / "attacks.jsonl"
    lines = records.read_text()
    for damaged in ("{", '{"row": 1}', lines.replace('"success"', '"victory"'), lines.replace('"row": ', '"row": "x')):
        records.write_text(damaged)
        with pytest.raises(ValueError, match="line 1: not a record of an attack"):
            read_attack_run(tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    values = json.loads(manifest.read_text())
    for name, value in {"recipe": 3, "sessions": ["x"], "data": {"path": [1.5]}, "model": {"path": []}}.items():
        manifest.write_text(json.dumps(values | {name: value}))
        with pytest.raises(ValueError, match="not the manifest of a run of attacks: "):
            read_attack_run(tmp_path / "run")


def test_the_measures_of_an_attack() -> None:
    def record(outcome: str, distance: int | None = None, radius: int = 2, **more: Any) -> dict[str, Any]:
        fields = {"queries": 10, "words_changed": distance, "verified": distance is not None, "covered": True}
        return {"outcome": outcome, "distance": distance, "radius": radius} | fields | more

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
    lost = {"outcome": "error", "row": 7, "problem": "it ended its worker 3 times"}  # in no measure but its own
    assert measure_attack([*records, lost]) == measures | {"errors": 1}
    assert robustness_curves([*records, lost]) == robustness_curves(records)
    assert measure_attack([record("success", 2)])["violations"] == 1
    assert measure_attack([record("success", 2, covered=False)])["violations"] == 0
    curves = robustness_curves(records)
    assert [point["certified"] for point in curves] == [0.8, 0.8, 0.8, 0, 0, 0]
    assert [point["attacked"] for point in curves] == [0.8, 0.8, 0.8, 0.8, 0.8, 0.6]
    assert (measures["median_gap"], measures["tight"]) == (2, 0)
    assert measure_attack([record("success", 3)])["tight"] == 1
    assert measure_attack([])["robust_accuracy_interval"] == [0.0, 1.0]


def test_the_bootstrap_interval_is_that_of_many_resamples() -> None:
    rng = np.random.default_rng(0)
    for count, size in ((130, 195), (9, 10), (20, 20)):
        inputs = np.arange(size) < count
        drawn = inputs[rng.integers(size, size=(20_000, size))].mean(axis=1)
        assert bootstrap_interval(count, size) == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=1.01 / size)
