"""Runs as entries: measures, names and seeds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.measures.summary import measure
from adaptdel.report.comparison import default_baseline, differences, paired
from adaptdel.report.entries import read_entries
from adaptdel.report.measured import read_inputs
from adaptdel.report.write import write_report
from adaptdel.runs.storage import read_run
from adaptdel.settings import AdditiveTrainingSettings
from tests.run_files import examples, make_data, make_model, run

ROWS = 300


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of the same rows with two seeds, at another alpha, against another attacker, and one of fewer rows."""
    place = tmp_path_factory.mktemp("runs")
    model, data = make_model(place / "model"), make_data(place / "data.jsonl", ROWS, 3)
    options = {"a": "", "seed": "--seed 1", "alpha": "--alpha 0.001", "ins": "--ops ins", "few": "--limit 200"}
    for name, more in options.items():
        assert run("certify", model, "--data", data, "--out", place / name, *more.split()) in (0, 1)
    return [place / name for name in options]


def test_the_measures_are_those_of_the_totals(runs: list[Path]) -> None:
    run = read_run(runs[0])
    inputs = read_inputs(run)
    assert len(inputs.outcomes) == len(inputs.rows) == ROWS
    measured, totals = measure(inputs.outcomes).to_dict(), run.manifest["totals"]
    shared = (measured.keys() & totals.keys()) - {"calls"}  # a sum in the totals
    assert len(shared) > 8
    assert {name: measured[name] for name in shared} == {name: totals[name] for name in shared}
    [entry] = read_entries(runs[:1])
    assert entry.seconds == pytest.approx(run.manifest["seconds"] / ROWS)


def test_seeds_are_one_entry_and_other_settings_are_not(runs: list[Path]) -> None:
    found = read_entries(runs)
    assert [len(entry.parts) for entry in found] == [2, 1, 1, 1]
    assert len({entry.name for entry in found}) == 4
    seeds, alpha, ins, _ = found
    assert len(seeds.outcomes) == 2 * ROWS
    assert seeds.measures.mean_radius == pytest.approx(np.mean([each.mean_radius for each in seeds.by_seed]))
    assert "ins" in ins.name
    assert [entry.name for entry in read_entries(runs[:3], ["x", "y", "x"])] == ["x", "y"]
    assert len(read_entries([runs[0], runs[0]])) == 2
    with pytest.raises(ValueError, match="names"):
        read_entries(runs, ["x"])
    assert default_baseline(found) is seeds
    assert default_baseline([ins, alpha, seeds]) is seeds  # two of three have its attacker
    assert (seeds.group == alpha.group, seeds.attacker == alpha.attacker) == (False, True)
    assert [len(part[0]) for part in paired([seeds, found[3]])] == [200, 200]


def test_radii_against_another_attacker_are_not_subtracted(runs: list[Path]) -> None:
    seeds, alpha, ins, few = read_entries(runs)
    compared = differences([seeds, alpha, ins, few], seeds, seed=0)
    assert compared[few.name][0] == 200
    assert "mean_radius" in compared[alpha.name][1]
    assert "mean_radius" not in compared[ins.name][1]
    assert compared[ins.name][1]["clean_accuracy"].value == pytest.approx(
        ins.measures.clean_accuracy - seeds.measures.clean_accuracy
    )


def test_unlabelled_rows_and_problems(tmp_path: Path) -> None:
    """Rows without a label are left out if others have labels, and counted if none has."""
    model = make_model(tmp_path / "model")
    lines = [json.loads(line) for line in make_data(tmp_path / "data.jsonl", 60, 3).read_text().splitlines()]
    for name, without, expected in (("some", range(0, 60, 3), (39, 20)), ("none", range(60), (59, 0))):
        rows = [{key: value for key, value in row.items() if key != "label" or n not in without}
                for n, row in enumerate(lines)]  # fmt: skip
        rows[7]["text"] = 5
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run("certify", model, "--data", tmp_path / f"{name}.jsonl", "--out", tmp_path / name)
        [entry] = read_entries([tmp_path / name])
        [part] = entry.parts
        assert (len(part.outcomes), part.unlabelled, part.problems) == (*expected, 1)
        assert entry.seconds == pytest.approx(part.run.manifest["seconds"] / 59)  # of all certificates
        assert entry.outcomes.labelled == (name == "some")


def test_exact_and_smoothed_runs_in_one_report(runs: list[Path], tmp_path: Path) -> None:
    texts, labels = zip(*examples(200, seed=1), strict=True)
    settings = AdditiveTrainingSettings(levels=4, iterations=20)
    ad.AdditiveClassifier(settings=settings, progress=False).fit(texts, labels).save(tmp_path / "model")
    run("certify", tmp_path / "model", "--data", runs[0].parent / "data.jsonl", "--out", tmp_path / "exact")
    values = write_report([runs[0], tmp_path / "exact"], tmp_path / "report", sample=3)
    exact, smoothed = read_entries([tmp_path / "exact", runs[0]])
    assert exact.group == smoothed.group
    assert [entry.confidence for entry in (exact, smoothed)] == ["certain", "95%"]
    assert not any("error levels" in note for note in values["notes"])
    assert all("deletes, inserts or substitutes 1 word" in sentence for sentence in values["summary"])
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count("The score of “") == page.count("of which an inserted word takes at most") >= 3
    assert "The words with the largest parts of this lead" in page


def test_radii_in_characters(runs: list[Path], tmp_path: Path) -> None:
    words, [characters] = read_entries(runs[:1])[0], read_entries(runs[:1], characters=True)
    assert characters.measures.mean_radius == words.measures.mean_character_radius
    assert characters.attacker != words.attacker
    values = write_report(runs[:1], tmp_path / "report", sample=1, characters=True)
    assert "characters" in values["summary"][0]
