"""Training with the linear model: methods, settings, files and folders."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from adaptdel import Deletion, FixedRate, LengthRate, Masking, NoNoise, SmoothedClassifier
from adaptdel.cli import main
from adaptdel.core.noise import RandomDeletion
from adaptdel.settings import UNSMOOTHED
from adaptdel.training import METHODS, TrainingJob, TrainingSettings, train, train_job
from adaptdel.training.training import method_noises

WORDS = {
    "ham": ["lunch", "meeting", "report", "minutes", "agenda"],
    "spam": ["free", "money", "offer", "click", "winner"],
}


def mails(count: int = 80, seed: int = 0) -> tuple[list[str], list[str]]:
    rng = random.Random(seed)
    labels = [("ham", "spam")[number % 2] for number in range(count)]
    filler = [f"w{number}" for number in range(30)]
    texts = [
        " ".join(rng.choices(WORDS[label], k=8) + rng.choices(filler, k=rng.randint(5, 20)) + [f"id{number}"])
        for number, label in enumerate(labels)
    ]
    return texts, labels


def write(path: Path, count: int = 80) -> Path:
    texts, labels = mails(count)
    path.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in zip(texts, labels, strict=True)))
    return path


def run(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def test_the_noises_of_the_methods() -> None:
    lengths = [100, 300]
    rates = {method: None if method in UNSMOOTHED else 0.95 for method in METHODS}
    settings = [TrainingSettings(method=method, model="bert", rate=rate) for method, rate in rates.items()]
    result = {each.method: method_noises(each, lengths) for each in settings}
    adaptdel = Deletion(LengthRate(0.95, 10))
    assert {m: n.smoothing for m, n in result.items()} == {
        "nosmooth": NoNoise(),
        "freelb": NoNoise(),
        "ranmask": Masking(0.95),
        "cert-ed": Deletion(FixedRate(0.95)),
        "adaptdel": adaptdel,
        "adaptdel+": adaptdel,
    }
    assert result["adaptdel+"].training == RandomDeletion(0.7, 0.99)
    assert all(n.training == n.smoothing for m, n in result.items() if m != "adaptdel+")


@pytest.mark.parametrize("method", [method for method in METHODS if method != "freelb"])
def test_every_method_learns_and_is_saved_with_its_record(tmp_path: Path, method: str) -> None:
    texts, labels = mails(200)
    model = train(texts, labels, method=method, bits=12, copies=4, progress=False)
    assert model.predict(mails(40, seed=9)[0]).tolist() == mails(40, seed=9)[1]
    record = model.records.training or {}
    assert record["method"] == method
    assert record["data"]["rows"] + record["data"]["held_out"] == 200
    assert 5 <= record["data"]["held_out"] <= 40
    assert record["history"][-1]["valid_accuracy"] == 1.0
    losses = [row["train_loss"] for row in record["history"]]
    assert losses == sorted(losses, reverse=True)
    model.save(tmp_path / "model")
    loaded = SmoothedClassifier.load(tmp_path / "model")
    assert loaded.records.training == json.loads(json.dumps(record))
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"Method: {method}" in card
    assert record["data"]["digest"][:16] in card
    assert ("Not calibrated yet" in card) == (method == "adaptdel+")


def test_training_is_deterministic_and_the_seed_matters() -> None:
    texts, labels = mails()
    first, again, other = (train(texts, labels, seed=seed, bits=10, copies=2, progress=False) for seed in (1, 1, 2))
    assert first.base_.fingerprint() == again.base_.fingerprint() != other.base_.fingerprint()


def test_a_held_out_file_is_used_and_not_trained_on() -> None:
    texts, labels = mails()
    flipped = [{"ham": "spam", "spam": "ham"}[label] for label in labels]
    model = train(texts, labels, bits=12, validation=(texts, flipped), progress=False)
    assert (model.records.training or {})["history"][-1]["valid_accuracy"] == 0.0
    assert (model.records.training or {})["data"]["rows"] == len(texts)
    assert (model.records.training or {})["validation"] is None


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"method": "adaptdell"}, "method must be one of 'nosmooth', 'ranmask', 'cert-ed', 'adaptdel'"),
        ({"dtype": "int8"}, "'dtype' is not a field"),
        ({"model": "x", "dtype": "int4"}, "dtype must be one of 'float32', 'tf32', 'bfloat16', 'int8', got 'int4'"),
        ({"method": "nosmooth", "rate": 0.9}, "rate has no meaning for method nosmooth: leave it out"),
        ({"rates": (0.7, 0.9)}, "rates has no meaning for method adaptdel: leave it out"),
        ({"method": "freelb"}, "method freelb perturbs embeddings, which the linear model does not have: give"),
        ({"method": "adaptdel+", "rates": (0.9, 0.7)}, "rates must rise, got 0.9 and 0.7"),
        ({"method": "exact", "rate": 0.9}, "rate has no meaning for method exact"),
        ({"method": "exact", "model": "bert"}, "model must be 'linear' for method exact"),
        ({"method": "exact", "validation": "held.csv"}, "validation must be a fraction above 0 for method exact"),
        ({"method": "exact", "bits": 12}, "'bits' is not a field"),
        ({"validation": 0.95}, "validation must be a fraction below 0.9 or a file, got 0.95"),
    ],
)
def test_wrong_settings_get_one_sentence(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        TrainingSettings.from_dict(fields)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("texts", "labels", "sentence"),
    [
        (["a", "b"], [0, 0], "labels must be of at least two classes, got only 0"),
        (["a", "b"], [0], "labels must be one for each of the 2 texts, got 1"),
        ([], [], "training needs at least one example, got none"),
    ],
)
def test_wrong_examples_get_one_sentence(texts: list[str], labels: list[int], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        train(texts, labels, progress=False)
    assert str(error.value) == sentence


def test_the_command_trains_once_and_refuses_other_settings(tmp_path: Path, capsys: Any) -> None:
    data, out = write(tmp_path / "train.jsonl"), tmp_path / "model"
    arguments = ("train", "--data", data, "--method", "cert-ed", "--set", "bits=10", "--out", out)
    assert run(*arguments) == 0
    said = capsys.readouterr()
    assert "cert-ed, 2 classes" in said.out
    assert "next: adaptdel certify" in said.out
    earlier = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert set(earlier) == {
        "adaptdel.json",
        "README.md",
        "training.json",
        "history.png",
        "texts.safetensors",
    }
    assert run(*arguments) == 0
    assert "trained already, nothing to do" in capsys.readouterr().out
    assert run(*arguments, "--rate", 0.95) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "rate was 0.81, now 0.95: choose another --out, or --overwrite" in error
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == earlier
    assert run(*arguments, "--rate", 0.95, "--overwrite", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["rate"] == 0.95
    assert SmoothedClassifier.load(out).noise_ == Deletion(FixedRate(0.95))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_data_that_changed_is_noticed(tmp_path: Path) -> None:
    job = TrainingJob(
        str(write(tmp_path / "x.jsonl")), str(tmp_path / "m"), TrainingSettings.from_dict({"bits": 10, "copies": 1})
    )
    assert not train_job(job, progress=False).already_done
    assert train_job(job, progress=False).already_done
    write(tmp_path / "x.jsonl", 90)
    with pytest.raises(ValueError, match=r"data was [0-9a-f]{12}"):
        train_job(job, progress=False)


def test_a_folder_with_something_else_is_not_touched(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("precious")
    data = write(tmp_path / "x.jsonl")
    assert run("train", "--data", data, "--set", "bits=10", "--out", tmp_path / "thesis", "--overwrite") == 2
    assert "holds something that is not a model: choose another folder for --out" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.txt"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("data: x.jsonl\nout: m\nmethods: adaptdel\n", "did you mean 'method'"),
        ("out: m\ndata: [x]\n", "data must be a string"),
        ("!!python/object/apply:os.system [ls]\n", "c.yaml: not YAML"),
    ],
)
def test_wrong_configurations_get_one_sentence(tmp_path: Path, text: str, word: str, capsys: Any) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert run("train", "--config", tmp_path / "c.yaml") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert word in error


def test_settings_from_a_file(tmp_path: Path, capsys: Any) -> None:
    data = write(tmp_path / "x.jsonl")
    (tmp_path / "c.yaml").write_text(f"{{data: {data}, bits: 10, copies: 2, method: adaptdel+, rates: [0.8, 0.9]}}")
    assert run("train", "--config", tmp_path / "c.yaml", "--out", tmp_path / "a", "--set", "copies=1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["settings"]["copies"] == 1
    assert (SmoothedClassifier.load(tmp_path / "a").records.training or {})["noise"] == {
        "kind": "random_deletion",
        "low": 0.8,
        "high": 0.9,
    }
