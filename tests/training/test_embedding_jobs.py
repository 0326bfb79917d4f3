"""Training jobs of the embedding network: from a file to a certificate, killed and resumed, bad input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptdel import SmoothedClassifier
from adaptdel.calibration.folders import calibrate_folder
from adaptdel.classifiers import embedding_training
from adaptdel.classifiers.word_encoders import write_vectors
from adaptdel.cli import main
from adaptdel.hyperparameters import EMBEDDING_MODEL
from adaptdel.text.data import read_examples
from adaptdel.training import TrainingJob, TrainingSettings, train, train_job
from adaptdel.training.protection import Protection
from tests.classifiers.test_embedding import BAD, GOOD, Clock, texts

pytest.importorskip("torch")

SMALL: dict[str, Any] = {"steps": 60, "batch_size": 64, "bits": 8}
SHAPE: dict[str, Any] = {"dimensions": 8, "width": 8, "hidden": [16], "copies_per_text": 2, "evaluations": 3}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows, labels = texts(120)
    lines = [json.dumps({"text": " ".join(map(str, row)), "label": y}) for row, y in zip(rows, labels, strict=True)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path / "data.jsonl"


def job(data: Path, out: str, **fields: Any) -> TrainingJob:
    settings = TrainingSettings(model="embedding", network=SHAPE, **{"validation": 0.2, **SMALL, **fields})
    return TrainingJob(str(data), str(data.parent / out), settings)


def call(*arguments: object) -> int:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("nosmooth", {}),
        ("ranmask", {"rate": 0.6}),
        ("cert-ed", {"rate": 0.6}),
        ("adaptdel", {"rate": 0.5}),
        ("adaptdel+", {"kept": (3.0, 8.0), "networks": 2}),
    ],
)
def test_every_method_from_a_file_to_a_certificate(data: Path, method: str, fields: dict[str, Any]) -> None:
    trained = train_job(job(data, "model", method=method, **fields), progress=False).model
    assert sorted(path.name for path in data.parent.iterdir()) == ["data.jsonl", "model"]
    record = trained.training_
    assert record["clean_accuracy"] > 0.8 or method == "adaptdel+"  # which is not calibrated yet
    assert record["history"][-1]["step"] == 60 * fields.get("networks", EMBEDDING_MODEL.networks)
    card = (data.parent / "model" / "README.md").read_text(encoding="utf-8")
    assert "Base classifier: embedding" in card
    assert "dimensions 8" in card
    if method == "adaptdel+":
        assert "Not calibrated yet" in card
        calibrate_folder(data.parent / "model", read_examples(data), {}, on="all", progress=False)
    loaded = SmoothedClassifier.load(data.parent / "model").set_params(n_estimate=50, progress=False)
    result = loaded.certify(["good great the film fine lovely good good", "bad awful plot poor the dull bad bad"])
    assert [certificate.label for certificate in result] == ["pos", "neg"]
    assert train_job(job(data, "model", method=method, **fields), progress=False).already_done


def test_texts_that_chose_the_weights_prove_no_rate_of_false_positives(data: Path) -> None:
    """Held-out texts decide when the training stops; a threshold that is chosen on them is an estimate."""
    protecting: dict[str, Any] = {"protect": "neg", "max_false_positives": 0.2}
    model = train_job(job(data, "model", method="adaptdel+", rate=0.5, **protecting), progress=False).model
    assert model.protection_["chose_weights"]
    assert "an estimate, not a proof" in Protection.from_dict(model.protection_).sentence()
    card = (data.parent / "model" / "README.md").read_text(encoding="utf-8")
    assert "it is estimated, not proved" in card
    assert "this model, not trained on them, though they decided which weights were kept" in card
    quick = {"examples": 40, "n_select": 16, "n_estimate": 64, "min_count": 5}
    rows, labels = texts(100, seed=5)
    other = data.parent / "other.jsonl"
    lines = [json.dumps({"text": " ".join(map(str, row)), "label": y}) for row, y in zip(rows, labels, strict=True)]
    other.write_text("\n".join(lines), encoding="utf-8")
    for source, alone, is_estimate in ((data, None, True), (other, None, False), (data, other, False)):
        done = calibrate_folder(
            data.parent / "model",
            read_examples(str(source)),
            quick,
            out=data.parent / "calibrated",
            overwrite=True,
            threshold_examples=None if alone is None else read_examples(str(alone)),
            progress=False,
        )
        assert done.protection is not None
        assert done.protection.is_estimate == is_estimate
    by_file = train_job(job(data, "by-file", rate=0.5, **protecting, validation=str(other)), progress=False).model
    assert by_file.protection_["chose_weights"]
    with pytest.raises(ValueError, match="that the model was not trained on, got none: give them with --threshold-dat"):
        calibrate_folder(data.parent / "by-file", read_examples(str(data)), quick, progress=False)
    done = calibrate_folder(data.parent / "by-file", read_examples(str(other)), quick, progress=False)
    assert done.protection is not None
    assert done.protection.is_estimate


def test_a_stopped_job_goes_on(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train_job(job(data, "whole", networks=2), progress=False).model

    def stop(done: int, total: int) -> None:
        if done == 110:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_job(job(data, "model", networks=2), progress=stop)
    assert not (data.parent / "model").exists()
    with pytest.raises(ValueError, match="another training of this model was interrupted"):
        train_job(job(data, "model", networks=2, seed=1), progress=False)
    resumed = train_job(job(data, "model", networks=2), progress=False).model
    assert resumed.base_.fingerprint() == whole.base_.fingerprint()
    assert resumed.training_["history"] == whole.training_["history"]


def test_a_time_limit_and_class_weights(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(embedding_training, "monotonic", Clock(1.0))
    arguments: list[object] = ["train", "--data", data, "--model", "embedding", "--out", data.parent / "model"]
    arguments += ["--steps", 200, "--batch-size", 64, "--bits", 8, "--networks", 2, "--class-weight", "balanced"]
    arguments += ["--network", "dimensions=8", "--network", "width=8", "--network", "copies_per_text=2"]
    assert call(*arguments, "--max-minutes", 2) == 0
    record = SmoothedClassifier.load(data.parent / "model").training_
    assert (record["settings"]["class_weight"], record["settings"]["max_minutes"]) == ("balanced", 2.0)
    steps = record["stopped_by_time"]["steps"]
    assert record["stopped_by_time"]["planned_steps"] == 200
    assert all(40 < count < 60 for count in steps)
    sentence = (
        f"the time limit of 2 minutes ended the training after {steps[0]} and {steps[1]} of 200 steps, with the "
        "learning rate lowered in time; more time may give a better model"
    )
    assert sentence in record["warnings"]
    assert f"warning: {sentence}" in capsys.readouterr().err
    assert f"**Warning**: {sentence}" in (data.parent / "model" / "README.md").read_text(encoding="utf-8")
    assert call(*arguments, "--max-minutes", 2) == 0
    assert call(*arguments) == 2
    assert "max_minutes was 2.0, now None" in capsys.readouterr().err


# The command line, which kills itself after so many checkpoints, the last of which it has or has not written.
KILLED = """
import os, signal, sys
from adaptdel.classifiers import embedding_training
from adaptdel.cli import main
left, is_written, write = int(sys.argv.pop(1)), sys.argv.pop(1) == "written", embedding_training._write_checkpoint
def killed(*arguments):
    global left
    left -= 1
    if left or is_written:
        write(*arguments)
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
embedding_training._write_checkpoint = killed
main()
"""


@pytest.mark.slow
def test_a_killed_command_goes_on(data: Path) -> None:
    """kill -9, and the same command again: the same model."""
    common = ["train", "--data", data, "--model", "embedding", "--steps", 600, "--batch-size", 64, "--bits", 8]
    common += ["--network", "dimensions=8", "--network", "width=8", "--network", "evaluations=30", "--patience", 10**6]
    assert call(*common, "--out", data.parent / "whole") == 0
    for count, when in ((1, "not"), (2, "written"), (3, "not"), (4, "written")):
        command = [
            sys.executable,
            "-c",
            KILLED,
            str(count),
            when,
            *map(str, common),
            "--out",
            str(data.parent / "model"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert call(*common, "--out", data.parent / "model") == 0
    each, other = (SmoothedClassifier.load(data.parent / name).base_.fingerprint() for name in ("whole", "model"))
    assert each == other


def test_static_vectors_and_yaml(data: Path) -> None:
    vectors = data.parent / "vectors.safetensors"
    write_vectors(vectors, [*GOOD, *BAD], np.eye(8))
    lines = [f"data: {data}", "model: embedding", f"encoder: {vectors}", "steps: 60", "batch_size: 64", "bits: 8"]
    lines += [f"network: {json.dumps(SHAPE)}", f"out: {data.parent / 'model'}"]
    (data.parent / "runs.yaml").write_text("\n".join(lines), encoding="utf-8")
    assert call("train", "--config", data.parent / "runs.yaml", "--json") == 0
    record = SmoothedClassifier.load(data.parent / "model").training_
    assert record["words"] == 8
    assert record["encoder"]["kind"] == "static"
    assert record["settings"]["hidden"] == [16]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["--method", "freelb"], "method freelb is for transformers"),
        (["--epochs", "3"], "epochs has no meaning for model embedding: leave it out"),
        (["--features", "hash"], "features has no meaning for model embedding: leave it out"),
        (["--on-unknown", "encode"], "on_unknown must be 'ngrams' unless the encoder is a transformer"),
        (["--encoder", "no/such"], "encoder must be a transformer that can be read, got 'no/such'"),
        (["--encoder", "no.safetensors"], "no.safetensors cannot be read: No such file"),
        (["--network", "dropout"], "network must be NAME=VALUE such as dropout=0.1"),
        (["--network", "dropot=1"], "'dropot' is not a field: did you mean 'dropout'?"),
        (["--network", "hidden=128"], "hidden must be a list of whole numbers"),
        (["--network", "dropout=7"], "dropout must be a probability"),
        (["--network", "steps=7"], "'steps' is not a field"),
        (["--steps", "0"], "steps must be a whole number of at least 1"),
        (["--networks", "99"], "networks must be a whole number of at least 1 and at most 16"),
        (["--dtype", "bfloat16"], "dtype must be one of 'int8', 'float32', got 'bfloat16'"),
        (["--learning-rate", "1e6", "--network", "embedding_rate=1e6", "--steps", "40", "--batch-size", "32"], "rate"),
    ],
)
def test_bad_input_gets_one_sentence(
    data: Path, fields: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert call("train", "--data", data, "--out", data.parent / "model", "--model", "embedding", *fields) == 2
    printed = capsys.readouterr().err.strip()
    assert printed.startswith(f"adaptdel: {message}") or (message == "rate" and "must be smaller" in printed)
    assert "\n" not in printed
    assert not (data.parent / "model").exists()


def test_options_of_the_network_need_the_network(data: Path) -> None:
    fields: dict[str, Any] = {"steps": 5, "encoder": "x", "networks": 2, "network": {"dropout": 0.1}}
    for field, value in fields.items():
        with pytest.raises(ValueError, match=f"{field} has no meaning for model linear: leave it out"):
            TrainingSettings(**{field: value})


@pytest.mark.parametrize("unit", ["char", "byte", "chunk:3"])
def test_other_units(unit: str) -> None:
    rows, labels = texts(60)
    inputs: list[Any] = ["".join(map(str, row)) for row in rows]
    if unit != "char":
        inputs = [text.encode() for text in inputs]
    shape = {**SHAPE, "hidden": (16,)}
    model = train(inputs, labels, model="embedding", unit=unit, network=shape, progress=False, **SMALL)
    assert model.training_["clean_accuracy"] is not None


def test_every_evaluation_is_reported_as_it_comes(data: Path) -> None:
    said: list[tuple[str, int]] = []
    steps: list[int] = []
    train_job(
        job(data, "model", networks=2),
        progress=lambda done, total: steps.append(done),
        note=lambda text: said.append((text, len(steps))),
    )
    lines = [(text, done) for text, done in said if text.startswith("network ")]
    assert [text.split(":")[0] for text, _ in lines] == [
        f"network {network} of 2, step {step} of 60" for network in (1, 2) for step in (20, 40, 60)
    ]
    assert [done for _, done in lines] == [20, 40, 60, 80, 100, 120]
    assert "valid vote share" in lines[0][0]


def test_refused_settings_leave_nothing_behind(data: Path) -> None:
    before = sorted(data.parent.iterdir())
    with pytest.raises(ValueError, match="on_unknown must be 'ngrams'"):
        train_job(job(data, "model", on_unknown="encode"), progress=False)
    assert sorted(data.parent.iterdir()) == before
