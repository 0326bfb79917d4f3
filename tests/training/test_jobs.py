"""Training jobs of transformers: from a file to a certificate, resumed after an interruption."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from adaptdel import SmoothedClassifier  # noqa: E402
from adaptdel.training import TrainingJob, TrainingSettings, train_job  # noqa: E402
from tests.classifiers.test_noisy_copies import examples  # noqa: E402
from tests.classifiers.test_transformer_training import Killed, killed_at  # noqa: E402
from tests.classifiers.test_transformers import fixed, tiny  # noqa: E402


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = fixed("bert")
    tiny("bert", tokenizer, spread=0.1).bert.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def job(encoder: str, folder: Path, out: str, method: str, **fields: Any) -> TrainingJob:
    data = folder / "data.jsonl"
    if not data.exists():
        rows, labels = examples(90)
        lines = [json.dumps({"text": " ".join(row), "label": y}) for row, y in zip(rows, labels, strict=True)]
        data.write_text("\n".join(lines))
    schedule: dict[str, Any] = {"epochs": 6, "patience": 25, "batch_size": 8, "learning_rate": 5e-3, "warmup": 0.0}
    settings = TrainingSettings.from_dict(
        {"method": method, "model": encoder, "validation": 0.2, "seed": 2, "class_weight": None, **schedule, **fields}
    )
    return TrainingJob(str(data), str(folder / out), settings)


@pytest.mark.parametrize("method", ["nosmooth", "ranmask", "cert-ed", "adaptdel", "adaptdel+", "freelb"])
def test_every_method_from_a_file_to_a_certificate(encoder: str, tmp_path: Path, method: str) -> None:
    rate: dict[str, Any] = {} if method in ("nosmooth", "freelb") else {"rate": 0.3}
    done = train_job(job(encoder, tmp_path, "model", method, **rate), progress=False)
    assert len((done.model.records.training or {})["history"]) == 6
    assert (done.model.records.training or {})["versions"]["torch"] == str(torch.__version__)
    loaded = SmoothedClassifier.load(tmp_path / "model")
    result = loaded.set_params(n_estimate=50, progress=False).certify(
        ["good good the film was all", "bad bad plot and the"]
    )
    assert [each.label for each in result] == ["pos", "neg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "model"]


def test_a_sample_of_the_rows(encoder: str, tmp_path: Path) -> None:
    small = replace(job(encoder, tmp_path, "model", "nosmooth", epochs=1), sample=40)
    data = (train_job(small, progress=False).model.records.training or {})["data"]
    assert data["rows"] + data["held_out"] == 40
    assert train_job(small, progress=False).already_done
    with pytest.raises(ValueError, match="choose another --out"):
        train_job(replace(small, sample=41), progress=False)


def test_a_stopped_job_goes_on_and_another_is_refused(encoder: str, tmp_path: Path) -> None:
    whole = train_job(job(encoder, tmp_path, "whole", "adaptdel", rate=0.3, dtype="bfloat16"), progress=False)
    wanted = job(encoder, tmp_path, "model", "adaptdel", rate=0.3, dtype="bfloat16")
    for step in (13, 25):
        with pytest.raises(Killed):
            train_job(wanted, progress=killed_at(step))
        assert not (tmp_path / "model").exists()
    with pytest.raises(ValueError, match=r"rate was 0.3, now 0.5"):
        train_job(job(encoder, tmp_path, "model", "adaptdel", rate=0.5, dtype="bfloat16"), progress=False)
    done = train_job(wanted, progress=False)
    assert done.model.base_.fingerprint() == whole.model.base_.fingerprint()
    assert SmoothedClassifier.load(tmp_path / "model").base_.options()["dtype"] == "bfloat16"
    assert train_job(wanted, progress=False).already_done


def test_int8_is_run_by_onnxruntime(encoder: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    wanted = job(encoder, tmp_path, "model", "adaptdel", rate=0.3, dtype="int8")
    assert train_job(wanted, progress=False).model.base_.options()["dtype"] == "int8"
    assert SmoothedClassifier.load(tmp_path / "model").base_classifier().dtype == "int8"
    assert train_job(wanted, progress=False).already_done
