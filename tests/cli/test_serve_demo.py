"""``adaptdel serve --demo``: the demonstration's model and its examples, without more arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptdel import FixedRate, SmoothedClassifier
from adaptdel.cli import main
from adaptdel.cli import serve as command
from adaptdel.core.noise import Deletion
from adaptdel.files import write_json
from adaptdel.models.model_files import EXAMPLES
from adaptdel.serve import app

TEXTS = ["good film", "bad film", "good story", "bad plot"] * 5


def saved(folder: Path) -> Path:
    model = SmoothedClassifier(noise=Deletion(FixedRate(0.5))).fit(TEXTS, ["positive", "negative"] * 10)
    model.save(folder)
    return folder


def test_the_model_of_the_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    asked, served = [], []

    def demo_models(folder: Path, **options: Any) -> dict[str, Path]:
        asked.append(folder)
        model = saved(folder / "model")
        write_json(model / EXAMPLES, {"examples": [{"title": "Short", "text": "good film"}]})
        return {"film-reviews": model}

    def serve(service: Any, opened: Any) -> None:
        served.append(service)

    monkeypatch.setattr(command, "demo_models", demo_models)
    monkeypatch.setattr(app, "serve", serve)
    other = saved(tmp_path / "mine")
    for arguments, names in ((["--demo"], ["film-reviews"]), (["--demo", str(other)], ["film-reviews", "mine"])):
        with pytest.raises(SystemExit) as stop:
            main(["serve", *arguments, "--port", "0"])
        assert not stop.value.code
        told = served[-1].info()["models"]
        assert [model["name"] for model in told] == names
        assert told[0]["examples"] == [{"title": "Short", "text": "good film"}]
    assert asked == [Path("out/demo")] * 2
    assert "adaptdel serves at http://127.0.0.1:" in capsys.readouterr().out
