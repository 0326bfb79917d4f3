"""Damaged and hostile model folders: each is refused in one sentence, before anything is allocated."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import adaptdel as ad
from adaptdel.classifiers.foreign import stored_shapes
from adaptdel.classifiers.transformers import TransformersClassifier
from tests.classifiers.test_transformers import fixed, tiny
from tests.run_files import run, write_rows

pytest.importorskip("torch")
pytest.importorskip("transformers")

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    tokenizer = fixed("bert")
    tiny("bert", tokenizer, labels=2, spread=0.1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edited(folder / "config.json", lambda values: values | changes)


def edited(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")


def damaged(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return apply


def with_index(values: Any) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "part.safetensors")
        (folder / INDEX).write_text(json.dumps(values), encoding="utf-8")

    return apply


def fifo(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return apply


def tokenizer_with(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edited(folder / "tokenizer.json", lambda values: values | changes)


PANICS_WHEN_LOADED = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAEAAP//"}}
PANICS_WHEN_CALLED = {
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "B", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
}
FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), WEIGHTS),
    "weights cut": (damaged(WEIGHTS, lambda content: content[: len(content) // 2]), "cannot be read"),
    "header damaged": (damaged(WEIGHTS, lambda content: content[:8] + b"]" + content[9:]), "cannot be read"),
    "header of 2**60 bytes": (damaged(WEIGHTS, lambda content: (2**60).to_bytes(8, "little")), "cannot be read"),
    "weights of NaN": (damaged(WEIGHTS, lambda content: content[:-4000] + b"\xff" * 4000), "finite"),
    "index of lists": (with_index({"weight_map": ["part.safetensors"]}), INDEX),
    "index without a map": (with_index({}), INDEX),
    "index of numbers": (with_index({"weight_map": {"a": 1}}), INDEX),
    "index outside": (with_index({"weight_map": {"a": "../part.safetensors"}}), INDEX),
    "index of a missing file": (with_index({"weight_map": {"a": "none.safetensors"}}), INDEX),
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "config.json"),
    "configuration is a list": (lambda folder: edited(folder / "config.json", lambda values: [values]), "config.json"),
    "nested configuration": (damaged("config.json", lambda content: b"[" * 10**5), "config.json"),
    "unknown architecture": (config(model_type="nothing"), "cannot be read"),
    "own code": (config(auto_map={"AutoConfig": "own.Config"}, model_type="own"), "cannot be read"),
    "10,000 layers": (config(num_hidden_layers=10_000), "num_hidden_layers"),
    "10**12 words": (config(vocab_size=10**12), "vocab_size"),
    "wide": (config(hidden_size=2**18, intermediate_size=2**18), "parameters"),
    "10**9 labels": (config(num_labels=10**9, id2label=None), "num_labels"),
    "positions": (config(max_position_embeddings=2**30), "max_position_embeddings"),
    "other width": (config(intermediate_size=63), "do not fit"),
    "no heads": (config(num_attention_heads=0), "cannot be read"),
    "text for a number": (config(hidden_size="wide"), "cannot be read"),
    "FIFO for the configuration": (fifo("config.json"), "config.json: not a regular file"),
    "FIFO for the weights": (fifo(WEIGHTS), f"{WEIGHTS}: not a regular file"),
    "FIFO for the tokenizer": (fifo("tokenizer.json"), "tokenizer.json: not a regular file"),
    "tokenizer cut": (damaged("tokenizer.json", lambda content: content[:100]), "cannot be read"),
    "tokenizer of nothing": (damaged("tokenizer.json", lambda content: b"{}"), "cannot be read"),
    "length that is no number": (
        lambda folder: edited(folder / "tokenizer_config.json", lambda values: values | {"model_max_length": {}}),
        "model_max_length",
    ),
    "tokenizer without a token for unknown words": (
        lambda folder: edited(
            folder / "tokenizer.json", lambda values: values | {"model": values["model"] | {"unk_token": "none"}}
        ),
        "cannot be read",
    ),
    "tokenizer that panics": (tokenizer_with(**PANICS_WHEN_LOADED), "panicked"),
    "tokenizer that panics later": (tokenizer_with(**PANICS_WHEN_CALLED), "panicked"),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_damaged_folders_are_refused_in_one_sentence(name: str, healthy: Path, tmp_path: Path) -> None:
    damage, word = FOLDERS[name]
    shutil.copytree(healthy, tmp_path / "model")
    damage(tmp_path / "model")
    with pytest.raises(ValueError) as error:
        TransformersClassifier(str(tmp_path / "model"))
    sentence = str(error.value)
    assert sentence.startswith(str(tmp_path / "model"))
    assert word in sentence
    assert "\n" not in sentence
    assert len(sentence) < 500


@pytest.mark.parametrize(
    "name", ["weights cut", "10,000 layers", "FIFO for the configuration", "tokenizer that panics later"]
)
def test_commands_refuse_damaged_folders(
    name: str, healthy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved"
    ad.SmoothedClassifier(TransformersClassifier(str(healthy)), ad.Deletion(ad.FixedRate(0.5))).save(saved)
    shutil.copytree(healthy, tmp_path / "model")
    for folder in (saved / "base", tmp_path / "model"):
        FOLDERS[name][0](folder)
    rows = [{"text": f"a good film {number}", "label": ("pos", "neg")[number % 2]} for number in range(40)]
    data = write_rows(tmp_path / "data.jsonl", rows)
    capfd.readouterr()
    for arguments in (("train", "--model", tmp_path / "model"), ("certify", saved)):
        assert run(*arguments, "--data", data, "--out", tmp_path / arguments[0]) == 2
        assert "Traceback" not in (said := capfd.readouterr().err)
        assert re.search("cannot be read|not a regular file", said.strip().splitlines()[-1])


def test_settings_without_the_precision_are_refused(healthy: Path, tmp_path: Path) -> None:
    ad.SmoothedClassifier(TransformersClassifier(str(healthy)), ad.Deletion(ad.FixedRate(0.5))).save(tmp_path)
    edited(tmp_path / "adaptdel.json", lambda values: values | {"options": {"max_length": 0}})
    with pytest.raises(ValueError, match="dtype"):
        ad.SmoothedClassifier.load(tmp_path)


def test_healthy_folders_pass_in_one_file_or_several(healthy: Path, tmp_path: Path) -> None:
    whole = TransformersClassifier(str(healthy))
    whole.model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    whole.tokenizer.save_pretrained(tmp_path / "parts")
    assert (tmp_path / "parts" / INDEX).exists()
    assert TransformersClassifier(str(tmp_path / "parts")).fingerprint() == whole.fingerprint()
    assert stored_shapes(tmp_path / "parts") == stored_shapes(healthy)
    encoder = tmp_path / "encoder"  # without a head, which training adds
    whole.model.base_model.save_pretrained(encoder)
    whole.tokenizer.save_pretrained(encoder)
    assert TransformersClassifier(str(encoder)).untrained_


def test_training_from_a_configuration_of_another_size_does_not_start_from_new_weights(
    healthy: Path, tmp_path: Path
) -> None:
    """A new head is allowed, as the classes may be others; other weights that do not fit were replaced in silence."""
    base = TransformersClassifier(str(healthy))
    config(intermediate_size=63)(healthy_copy := Path(shutil.copytree(healthy, tmp_path / "model")))
    base._folder = healthy_copy
    with pytest.raises(ValueError, match="do not fit"):
        base.with_head(["a", "b", "c"])
