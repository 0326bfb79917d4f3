"""Reports on large runs: counts instead of rows give the measures of all rows, and samples only what they must."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptdel.measures.distributions import mean, median, quantiles, shares_at_least, standard_error, wasserstein
from adaptdel.report import measured
from adaptdel.report.entries import read_entries
from adaptdel.report.measured import InputDigest
from adaptdel.report.write import write_report
from tests.run_files import make_data, make_model, run

ROWS = 300


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three runs: two of the same rows, and one of fewer."""
    place = tmp_path_factory.mktemp("measured")
    model, data = make_model(place / "model"), make_data(place / "data.jsonl", ROWS, 3)
    for name, more in (("a", []), ("b", ["--alpha", "0.001"]), ("c", ["--limit", "200"])):
        assert run("certify", model, "--data", data, "--out", place / name, *more) in (0, 1)
    return [place / name for name in "abc"]


def close(found: Any, expected: Any) -> bool:
    """Whether two values of report.json are equal, numbers up to rounding."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    return bool(found == expected)


def test_counts_give_the_report_of_all_rows(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the sample holds all inputs, only the notes differ."""
    expected = write_report(runs, tmp_path / "whole")
    monkeypatch.setattr(measured, "IN_MEMORY", 10)
    found = write_report(runs, tmp_path / "counted")
    for name in ("runs", "differences", "baseline"):
        assert close(found[name], expected[name]), name
    for name in ("curves", "classes", "confusion", "outcomes", "quartiles", "main", "regions", "differences"):
        tables = [(tmp_path / place / "tables" / f"{name}.csv") for place in ("whole", "counted")]
        whole, counted = (list(csv.reader(table.read_text().splitlines())) for table in tables)
        assert len(whole) == len(counted)
        for left, right in zip(whole, counted, strict=True):
            assert close([*map(_number, right)], [*map(_number, left)])
    for figure in (tmp_path / "whole" / "figures").glob("*.png"):
        assert (tmp_path / "counted" / "figures" / figure.name).exists()
    shown = [
        (tmp_path / place / "report.md").read_text().split("## Sampled inputs")[1] for place in ("whole", "counted")
    ]
    assert shown[0] == shown[1]


def _number(cell: str) -> Any:
    try:
        return float(cell)
    except ValueError:
        return cell


def test_large_runs_keep_a_sample(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = write_report(runs, tmp_path / "whole")
    monkeypatch.setattr(measured, "IN_MEMORY", 10)
    monkeypatch.setattr(measured, "SAMPLE", 120)
    entries = read_entries(runs)
    whole, same, fewer = entries
    assert len(whole.outcomes) == ROWS
    assert len(whole.outcomes.length) < ROWS
    assert len(whole.rows) == len(whole.inputs.sample) == 120
    assert list(whole.rows) == list(same.rows)  # the same inputs of the same data
    rows = [row["row"] for row in whole.rows.values()]
    assert rows == sorted(rows)
    assert whole.group is not None
    assert whole.inputs.digest == same.inputs.digest != fewer.inputs.digest
    found = write_report(runs, tmp_path / "sampled")
    assert close(found["runs"], expected["runs"])  # of a single run, everything is exact
    name, other = list(expected["differences"])
    assert found["differences"][name]["inputs"] == ROWS
    for measure in ("mean_radius", "certified_accuracy", "median_log_cardinality", "wasserstein", "calls"):
        exact, scaled = expected["differences"][name][measure], found["differences"][name][measure]
        assert scaled[0] == pytest.approx(exact[0], rel=1e-9, abs=1e-12)
        if exact[2] > exact[1]:
            assert (scaled[2] - scaled[1]) / (exact[2] - exact[1]) == pytest.approx(1, abs=0.6)
    common = found["differences"][other]["inputs"]
    assert 60 < common < 120  # 200 of 300 rows are in both
    said = " ".join(found["notes"])
    assert "is large: its measures and curves count all 300 inputs" in said
    assert "are compared on all 300 inputs; the intervals are those of a random sample" in said
    assert f"hold different inputs: they are compared on {common} inputs drawn at random" in said


def test_unlabelled_rows_and_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without a label are left out if others have labels, and counted if none has."""
    model = make_model(tmp_path / "model")
    lines = [json.loads(line) for line in make_data(tmp_path / "data.jsonl", 60, 3).read_text().splitlines()]
    for name, without in (("some", range(0, 60, 3)), ("none", range(60))):
        rows = [{key: value for key, value in row.items() if key != "label" or n not in without}
                for n, row in enumerate(lines)]  # fmt: skip
        rows[7]["text"] = 5
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        run("certify", model, "--data", tmp_path / f"{name}.jsonl", "--out", tmp_path / name)
        expected = write_report([tmp_path / name], tmp_path / f"{name}-whole")
        with monkeypatch.context() as patch:
            patch.setattr(measured, "IN_MEMORY", 10)
            found = write_report([tmp_path / name], tmp_path / f"{name}-counted")
        assert close(found["runs"], expected["runs"])
        assert found["runs"][0]["problems"] == 1


def test_statistics_of_counted_values() -> None:
    """Counts stand for repeated values."""
    rng = np.random.default_rng(0)
    values, others, counts = rng.integers(0, 9, 40), rng.integers(1, 99, 40), rng.integers(1, 7, 40)
    repeated, lengths = np.repeat(values, counts), np.repeat(others, counts)
    assert mean(values, counts) == pytest.approx(repeated.mean())
    assert median(values, counts) == np.median(repeated)
    shares = [0.0, 0.1, 0.25, 0.5, 0.77, 1.0]
    assert quantiles(others / 7, counts, shares).tolist() == np.quantile(lengths / 7, shares).tolist()
    assert standard_error(values, counts) == pytest.approx(standard_error(repeated))
    assert wasserstein(values, others, counts) == pytest.approx(wasserstein(repeated, lengths))
    assert np.isnan(wasserstein(np.full(40, 3), others, counts))
    expected = [(repeated >= threshold).mean() for threshold in range(-1, 11)]
    assert shares_at_least(values, counts, range(-1, 11), len(repeated)).tolist() == pytest.approx(expected)
    assert np.isnan(mean(values[:0], counts[:0]))
    assert np.isnan(median(values[:0], counts[:0]))


def test_the_digest_is_that_of_a_set() -> None:
    first, second, third = InputDigest(), InputDigest(), InputDigest()
    for name, tokens in (("a", "x"), ("b", "y")):
        first.add(name, tokens)
    for name, tokens in (("b", "y"), ("a", "x")):
        second.add(name, tokens)
    for name, tokens in (("a", "y"), ("b", "x")):
        third.add(name, tokens)
    assert str(first) == str(second) != str(third)
