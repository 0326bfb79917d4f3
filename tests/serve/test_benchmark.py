"""The benchmark of the server, on few texts: it measures, and its checks of 300 requests hold."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from benchmarks.serve import CALLERS, ROUTES, TRAINING, main, summary, trend
from tests.models.test_smoothed import by_words, texts


def test_ratios_are_those_of_each_repeat() -> None:
    keys = ("per_second", "p50_ms", "p99_ms", "cpu_ms")
    measured = {
        "shared": [dict.fromkeys(keys, 4.0), dict.fromkeys(keys, 6.0), dict.fromkeys(keys, 1.0)],
        "alone": [dict.fromkeys(keys, 2.0), dict.fromkeys(keys, 2.0), dict.fromkeys(keys, 2.0)],
    }
    result = summary(measured)
    assert result["cpu_ms_ratio"] == {"median": 2.0, "least": 0.5, "most": 3.0}
    assert result["shared"]["per_second"] == 4.0


def test_the_trend_of_memory_leaves_out_the_start() -> None:
    growing = [100.0, 150.0, 200.0, 201.0, 202.0, 203.0, 300.0, 301.0]
    assert trend(growing) == {"second_quarter": 200.5, "last_quarter": 300.5, "most": 301.0}
    assert trend([7.0]) == {"second_quarter": 7.0, "last_quarter": 7.0, "most": 7.0}


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, count in (("train", 240), ("test", 60)):
        inputs = texts(count, seed=count, longest=120)
        rows = [
            json.dumps({"text": text, "label": int(label == "pos")})
            for text, label in zip(inputs, by_words(inputs), strict=True)
        ]
        with gzip.open(tmp_path / f"imdb.{part}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(rows) + "\n")
    monkeypatch.setattr(sys, "argv", ["serve", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--quick"])
    main()
    result = json.loads((tmp_path / "out" / "serve.json").read_text(encoding="utf-8"))
    assert len(result["load"]) == len(TRAINING) * (len(CALLERS) * len(ROUTES) + 1)
    assert all(row[mode]["refused"] == 0 for row in result["load"] for mode in ("shared", "alone"))
    endurance = result["endurance"]
    assert endurance["lost"] == endurance["certificates_different"] == 0
    assert endurance["certificates_equal"] > 50
    assert endurance["exit_statuses"] == [0, 0]
    assert set(endurance["left_at_the_end"].values()) == {0}
