"""The paths of docs/architecture.md: each command is run, and the files that it uses are compared with the drawing."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import adaptdel
from tests.run_files import make_model, run, write_rows
from tests.serve.serving import send

ROOT = Path(__file__).parents[1]
SOURCE = Path(adaptdel.__file__).parent
DRAWN = re.compile(r"^<!-- path: ([\w ]+) -->\n((?:    .*\n)+)", re.MULTILINE)


def drawings(page: str) -> dict[str, list[str]]:
    """The files of every drawing, each once, as paths inside the package without ".py"."""
    paths = {}
    for name, drawing in DRAWN.findall(page):
        steps = re.split(r"->|;", re.sub(r"\(.*?\)", "", drawing))
        files = [re.sub(r"^\s*at the end", "", step).strip() for step in steps]
        paths[name] = list(dict.fromkeys(files))
    return paths


PATHS = drawings((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


def files_used(*arguments: Any) -> set[str]:
    """The files of the package whose functions a command calls; importing a module does not count."""
    used: set[str] = set()

    def record(frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and frame.f_back is not None and code.co_flags & 0x02 and "<" not in code.co_name:
            used.add(code.co_filename)

    previous = sys.getprofile()
    sys.setprofile(record)
    threading.setprofile(record)
    try:
        status = run(*arguments)
    finally:
        sys.setprofile(previous)
        threading.setprofile(None)
    assert status == 0
    paths = [Path(name) for name in used if Path(name).is_relative_to(SOURCE)]
    return {path.relative_to(SOURCE).with_suffix("").as_posix() for path in paths}


FURNITURE = {
    "__init__", "cli/__init__", "cli/options", "core/checks", "core/plain", "core/registry", "files", "models/__init__",
    "plots", "progress", "settings", "store", "tables", "text/formats",
}  # fmt: skip
# Of the commands whose drawings are complete: the drawing of their engine, and how many files work at most.
COMPLETE = {
    "certify": ("engine of votes", 28),
    "certify scores": ("engine of scores", 26),
    "verify": ("engine of votes", 22),
    "train": ("engine of votes", 28),
    "calibrate": ("engine of votes", 30),
}


def test_every_drawing_names_files_that_exist() -> None:
    for files in PATHS.values():
        assert len(files) >= 5
        assert [name for name in files if not (SOURCE / f"{name}.py").is_file()] == []


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [("buy cheap pills now " * 8, "spam"), ("see you at lunch then " * 8, "ham")] * 20
    rows = [{"text": f"{text} {number}", "label": label} for number, (text, label) in enumerate(texts)]
    return write_rows(tmp_path_factory.mktemp("paths") / "data.jsonl", rows)


def test_the_commands_take_the_drawn_paths(tmp_path: Path, data: Path) -> None:
    model, exact, votes = tmp_path / "model", tmp_path / "exact", ("--votes", "16,32")
    quick = [part for name in ("n_select=16", "n_estimate=32") for part in ("--set", name)]
    bins = (*quick, "--objective", "paper", "--set", "bins=[0]", "--set", "tol=9")
    used = {
        "train": files_used("train", "--data", data, "--method", "adaptdel+", "--set", "bits=8", "--out", model),
        "calibrate": files_used("calibrate", model, "--data", data, "--set", "examples=20", *quick),
        "calibrate in bins": files_used("calibrate", model, "--data", data, "--out", tmp_path / "bins", *bins),
        "certify": files_used("certify", model, "--data", data, "--limit", 3, "--out", tmp_path / "run", *votes),
        "verify": files_used("verify", tmp_path / "run"),
        "attack": files_used(
            "attack", model, "--data", data, "--inputs", 2, "--set", "queries=600", "--out", tmp_path / "attack"
        ),
    }
    protect = ("--method", "exact", "--protect", "spam", "--max-false-positives", "0.5")
    used["train a filter"] = files_used("train", "--data", data, *protect, "--out", exact)
    for name, files in used.items():
        assert [file for file in PATHS[name] if file not in files] == [], name
    used["certify scores"] = files_used("certify", exact, "--data", data, "--out", tmp_path / "exact-run")
    for name, (engine, most) in COMPLETE.items():
        drawn = {*PATHS[name.removesuffix(" scores")], *PATHS[engine]}
        assert sorted(used[name] - FURNITURE - drawn) == [], name
        assert len(used[name] - FURNITURE) <= most, name
    for name in ("calibrate in bins", "certify"):
        missing = [file for file in PATHS["engine of votes"] if file not in used[name]]
        assert missing in ([], ["certification/certificate"]), name  # calibration asks evidence for radii
    assert "classifiers/transformers" not in used["train"]  # the comparison can fail


def test_a_request_to_the_server_takes_the_drawn_path(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, said, ended = make_model(tmp_path / "model"), io.StringIO(), threading.Event()
    monkeypatch.setattr(sys, "stdout", said)  # where the server prints its address

    def request() -> None:
        while (address := re.search("http://[0-9.:]+/", said.getvalue())) is None:
            if ended.wait(0.05):
                return
        try:
            send(address[0], "/v1/certify", {"text": "w1 w2 " * 20})
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    caller = threading.Thread(target=request)
    caller.start()
    try:
        files = files_used("serve", model, "--port", 0)
    finally:
        ended.set()
        caller.join()
    assert [file for file in PATHS["serve"] if file not in files] == []
    assert [file for file in PATHS["engine of votes"] if file not in files] == []


@pytest.mark.slow
def test_the_training_of_a_transformer_takes_the_drawn_path(tmp_path: Path, data: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.classifiers.test_transformers import fixed, tiny

    tokenizer = fixed("bert")
    tiny("bert", tokenizer, spread=0.1).bert.save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    options = ("--model", tmp_path / "encoder", "--set", "epochs=1", "--out", tmp_path / "model")
    files = files_used("train", "--data", data, *options)
    assert [file for file in PATHS["train a transformer"] if file not in files] == []
