"""``adaptdel serve --demo``: the demonstration's model and its examples, without more arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from adaptdel import demo
from adaptdel.files import write_json
from adaptdel.models.model_files import EXAMPLES
from adaptdel.serve import app
from tests.run_files import make_model, run


def test_the_model_of_the_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, served = make_model(tmp_path / "mine"), list[Any]()
    write_json(model / EXAMPLES, {"examples": [{"title": "Short", "text": "good film"}]})
    monkeypatch.setattr(demo, "demo_models", lambda folder, **options: {"film-reviews": model})
    monkeypatch.setattr(app, "serve", lambda service, *_: served.append(service.info()["models"]))
    for arguments, names in (([], ["film-reviews"]), ([model], ["film-reviews", "mine"])):
        assert run("serve", "--demo", *arguments, "--port", 0) == 0
        assert [each["name"] for each in served[-1]] == names
        assert served[-1][0]["examples"] == [{"title": "Short", "text": "good film"}]
