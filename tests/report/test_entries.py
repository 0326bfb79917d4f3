"""Runs and tables of other systems as entries: measures, names, seeds, and what a table may hold."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import adaptdel as ad
from adaptdel.core.threat import Threat, log10_cardinality
from adaptdel.measures.summary import measure
from adaptdel.report.comparison import default_baseline, differences, paired
from adaptdel.report.entries import read_entries, read_foreign, read_inputs
from adaptdel.report.write import write_report
from adaptdel.runs.storage import Run, read_run
from tests.run_files import examples, make_data, make_model

ROWS = 300


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of the same rows with two seeds, at another alpha, against another attacker, and one of fewer rows."""
    place = tmp_path_factory.mktemp("runs")
    model, data = make_model(place / "model"), make_data(place / "data.jsonl", ROWS, 3)
    changes: dict[str, dict[str, Any]] = {"a": {}, "b": {"seed": 1}, "alpha": {"alpha": 0.001}, "ins": {"ops": "ins"}}
    for name, settings in changes.items():
        ad.evaluate(ad.load(model).set_params(**settings), data, out=place / name, progress=False)
    ad.evaluate(model, data, out=place / "few", limit=200, progress=False)
    return [place / name for name in (*changes, "few")]


def test_the_measures_are_those_of_the_totals(runs: list[Path]) -> None:
    run = read_run(runs[0])
    inputs = read_inputs(run)
    assert len(inputs.outcomes) == len(inputs.rows) == ROWS
    measured, totals = measure(inputs.outcomes).to_dict(), run.manifest.totals
    assert totals
    shared = (measured.keys() & totals.keys()) - {"calls"}  # a sum in the totals
    assert len(shared) > 8
    assert {name: measured[name] for name in shared} == {name: totals[name] for name in shared}
    [entry] = read_entries(runs[:1])
    assert entry.seconds == pytest.approx((run.manifest.seconds or 0) / ROWS)


def test_the_size_of_a_region_is_that_of_its_certificate(runs: list[Path]) -> None:
    inputs = read_inputs(run := read_run(runs[0]))
    sizes = [each.log10_cardinality() if each.radius >= 1 else 0.0 for each in run.certificates()]
    assert max(sizes) > 0
    assert inputs.outcomes.log_cardinality.tolist() == sizes


def test_seeds_are_one_entry_and_other_settings_are_not(runs: list[Path]) -> None:
    entries = read_entries(runs)
    assert [len(entry.parts) for entry in entries] == [2, 1, 1, 1]
    assert len({entry.name for entry in entries}) == 4
    seeds, alpha, ins, few = entries
    assert len(seeds.outcomes) == 2 * ROWS
    assert seeds.measures.mean_radius == pytest.approx(np.mean([each.mean_radius for each in seeds.by_seed]))
    assert "ins" in ins.name
    assert [entry.name for entry in read_entries(runs[:3], ["x", "y", "x"])] == ["x", "y"]
    assert len(read_entries([runs[0], runs[0]])) == 2
    with pytest.raises(ValueError, match="names"):
        read_entries(runs, ["x"])
    assert default_baseline(entries) is seeds
    assert default_baseline([ins, seeds, alpha]) is seeds  # two of three have its attacker
    assert (seeds.group == alpha.group, seeds.attacker == alpha.attacker) == (False, True)
    assert [len(part[0]) for part in paired([seeds, few])] == [200, 200]
    compared = differences(entries, seeds, seed=0)
    assert compared[few.name][0] == 200
    assert "mean_radius" in compared[alpha.name][1]
    assert "mean_radius" not in compared[ins.name][1]  # radii against another attacker are not subtracted
    gap = ins.measures.clean_accuracy - seeds.measures.clean_accuracy
    assert compared[ins.name][1]["clean_accuracy"].value == pytest.approx(gap)


def test_unlabelled_rows_and_problems(tmp_path: Path) -> None:
    """Rows without a label are left out if others have labels, and counted if none has."""
    model = make_model(tmp_path / "model")
    lines = [json.loads(line) for line in make_data(tmp_path / "data.jsonl", 60, 3).read_text().splitlines()]
    for name, without, expected in (("some", range(0, 60, 3), (39, 20)), ("none", range(60), (59, 0))):
        rows = [{key: value for key, value in row.items() if key != "label" or n not in without}
                for n, row in enumerate(lines)]  # fmt: skip
        rows[7]["text"] = 5
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        ad.evaluate(model, tmp_path / f"{name}.jsonl", out=tmp_path / name, progress=False)
        [entry] = read_entries([tmp_path / name])
        [part] = entry.parts
        assert (len(part.outcomes), part.unlabelled, part.problems) == (*expected, 1)
        assert part.run
        assert entry.seconds == pytest.approx((part.run.manifest.seconds or 0) / 59)  # of all certificates
        assert entry.outcomes.labelled == (name == "some")


def test_certain_and_sampled_certificates_in_one_report(runs: list[Path], tmp_path: Path) -> None:
    texts, labels = zip(*examples(200, seed=1), strict=True)
    model = ad.AdditiveClassifier(levels=4, iterations=20, progress=False).fit(texts, labels)
    ad.evaluate(model, runs[0].parent / "data.jsonl", out=tmp_path / "exact", progress=False)
    values = write_report([runs[0], tmp_path / "exact"], tmp_path / "report", sample=3)
    certain, sampled = read_entries([tmp_path / "exact", runs[0]])
    assert certain.group == sampled.group
    assert [entry.name for entry in (certain, sampled)] == ["Exact", "AdaptDel 70%"]
    assert [entry.first.settings["confidence"] for entry in (certain, sampled)] == ["certain", "95%"]
    assert not any("confidence levels" in note for note in values["notes"])
    assert all("deletes, inserts or substitutes 1 word" in sentence for sentence in values["summary"])
    page = (tmp_path / "report" / "index.html").read_text()
    assert page.count("The score of “") == page.count("of which an inserted word costs at most") >= 3
    assert "The words with the largest parts of this lead" in page


def test_radii_in_characters(runs: list[Path], tmp_path: Path) -> None:
    words, [characters] = read_entries(runs[:1])[0], read_entries(runs[:1], characters=True)
    assert characters.measures.mean_radius == words.measures.mean_character_radius
    assert characters.attacker != words.attacker
    values = write_report(runs[:1], tmp_path / "report", sample=1, characters=True)
    assert "characters" in values["summary"][0]


# Tables of other systems


@pytest.fixture(scope="module")
def ours(runs: list[Path]) -> Run:
    return read_run(runs[-1])


def stated(ours: Run, **changes: Any) -> list[dict[str, Any]]:
    """The rows of the run as another system would state them, with radii that are larger by 1."""
    return [
        {"id": row["id"], "label": row["truth"], "answer": row["answer"], "radius": row["radius"] + 1.5} | changes
        for row in ours.records()
    ]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return path


@pytest.mark.parametrize("name", ["theirs.csv", "theirs.jsonl", "theirs.parquet"])
def test_a_table_is_compared_on_the_same_inputs(ours: Run, tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, stated(ours))
    run_entry, table = read_entries([ours.folder, path])
    assert table.title == "theirs (not verifiable here)"
    assert (table.plan, table.certifies, table.certificates([1])) == (None, True, {})
    assert table.attacker == run_entry.attacker
    assert len(table.outcomes) == len(run_entry.outcomes) == 200
    [(common, gaps)] = differences([run_entry, table], run_entry, seed=0).values()
    right = run_entry.outcomes.correct
    gained = table.outcomes.radius - np.maximum(run_entry.outcomes.radius, 0)
    assert (common, gaps["mean_radius"].clear) == (200, True)
    assert gaps["mean_radius"].value == pytest.approx(gained[right].sum() / 200)
    record = next(iter(table.first.rows.values()))
    expected = log10_cardinality(record["radius"], length=record["length"]) if record["radius"] else 0.0
    assert table.outcomes.log_cardinality[0] == expected


def test_texts_or_row_numbers_name_inputs_and_nothing_certified_is_an_abstention(ours: Run, tmp_path: Path) -> None:
    texts = [json.loads(line)["text"] for line in Path(ours.manifest.data.path[0]).read_text().splitlines()]
    once = [place for place, text in enumerate(texts[:200]) if texts[:200].count(text) == 1][:3]
    like = read_inputs(ours)
    by_text = [{"text": text, "answer": 1, "radius": ""} for text in [*(texts[n] for n in once), "of another file"]]
    inputs = read_foreign(written(tmp_path / "a.csv", by_text), like)
    assert list(inputs.rows) == [place + 1 for place in once]
    assert (inputs.problems, inputs.outcomes.radius.tolist()) == (1, [-1, -1, -1])
    by_number = [{"id": 2, "answer": 0, "radius": 0.5, "length": 7, "ops": "ins", "unit": "char"}]
    inputs = read_foreign(written(tmp_path / "b.jsonl", by_number), like)
    assert (list(inputs.rows), inputs.outcomes.length.tolist(), inputs.outcomes.radius.tolist()) == ([2], [7], [0])
    assert (inputs.unit, inputs.threat) == ({"kind": "char"}, Threat("ins"))
    entries = read_entries([ours.folder, tmp_path / "b.jsonl"])
    assert set(differences(entries, entries[0], seed=0)["b"][1]) == {
        "clean_accuracy", "certified_accuracy", "balanced_accuracy",
    }  # fmt: skip
    entries = read_entries([ours.folder, tmp_path / "b.jsonl"], characters=True)
    assert entries[1].outcomes.radius.tolist() == [0]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"answer": "other"}, "answer"),
        ({"radius": "much"}, "radius"),
        ({"id": ""}, "id"),
        ({"ops": "edit,ins"}, "ops"),
        ({"unit": "pixel"}, "unit"),
        ({"unit": "char"}, "unit must be the same"),
        ({"length": "long"}, "length"),
        ({"label": "7"}, "ids count rows from 1"),
        ({"id": 4}, "the same input"),
    ],
)
def test_a_bad_row_is_named(ours: Run, tmp_path: Path, change: dict[str, Any], word: str) -> None:
    rows = stated(ours, ops="edit", unit="word", length="")[:6]
    rows[4] |= change
    with pytest.raises(ValueError, match=rf"theirs\.csv, row 5: .*{word}"):
        read_foreign(written(tmp_path / "theirs.csv", rows), read_inputs(ours))


def test_a_table_that_does_not_fit_is_refused(ours: Run, tmp_path: Path) -> None:
    like, rows = read_inputs(ours), stated(ours)
    for columns, name in ((("id", "answer"), "radius"), (("id", "radius"), "answer")):
        short = [{column: row[column] for column in columns} for row in rows]
        for ending in ("csv", "parquet"):
            with pytest.raises(ValueError, match=name):
                read_foreign(written(tmp_path / f"short.{ending}", short), like)
    with pytest.raises(ValueError, match="no row is on an input"):
        read_foreign(written(tmp_path / "b.csv", [rows[0] | {"id": "elsewhere"}]), like)
    with pytest.raises(ValueError, match="give a run"):
        read_entries([tmp_path / "b.csv"])
