"""The recipes of TextAttack on parts that the test makes; without the extra: errors."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.attacks.attack_run import AttackJob, attack_data
from adaptdel.attacks.target import Target
from adaptdel.attacks.textattack import (
    TEXTATTACK,
    USED_PARTS,
    TextAttackAttacker,
    given_vectors,
    import_textattack,
)
from adaptdel.runs.inputs import Source
from adaptdel.settings import ATTACK

from ..run_files import run, write_rows
from .conftest import BOTH, HAM, SPAM, fitted, texts

FEW = replace(ATTACK, inputs=3, queries=150, verify_votes=1000)


def test_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "nltk", None)
    with pytest.raises(ImportError, match="make attack-env"):
        import_textattack(None)
    fitted(ad.Deletion(ad.FixedRate(0.7))).save(tmp_path / "model")
    data = write_rows(tmp_path / "test.jsonl", [{"text": text, "label": label} for text, label in texts(4, 12)])
    out = tmp_path / "run"
    assert run("attack", tmp_path / "model", "--data", data, "--recipe", "textfooler", "--out", out) == 2
    assert "pip install 'adaptdel[attack]'" in capsys.readouterr().err
    assert not out.exists()


# With the extra


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny masked language model with random weights, which also encodes sentences; vectors; stop words."""
    if find_spec("textattack") is None:
        pytest.skip("needs TextAttack: make attack-test")
    folder = tmp_path_factory.mktemp("parts")
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [*ascii_lowercase, *(f"##{letter}" for letter in ascii_lowercase)]  # other words have several subwords
    vocabulary = {word: number for number, word in enumerate([*special, *SPAM, *HAM, *BOTH[2:], *letters])}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    fast_tokenizer: Any = PreTrainedTokenizerFast
    tokenizer = fast_tokenizer(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]", cls_token="[CLS]",
        sep_token="[SEP]", model_max_length=512,
    )  # fmt: skip
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=512,
    )  # fmt: skip
    masked_model: Any = BertForMaskedLM
    masked_model(config).save_pretrained(folder / "lm", safe_serialization=True)
    tokenizer.save_pretrained(folder / "lm")
    rng = np.random.default_rng(0)
    lines = [f"{word} " + " ".join(f"{x:.3f}" for x in 1 + 0.3 * rng.normal(size=8)) for word in [*SPAM, *HAM]]
    (folder / "glove.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    stop_words = folder / "nltk" / "corpora" / "stopwords"
    stop_words.mkdir(parents=True)
    (stop_words / "english").write_text("\n".join(BOTH) + "\n", encoding="utf-8")
    return {
        "masked_lm": str(folder / "lm"),
        "sentence_encoder": str(folder / "lm"),
        "word_vectors": str(folder / "glove.txt"),
        "tagger": "none",
        "nltk_data": str(folder / "nltk"),
    }


def attacked(folder: Path, name: str, recipe: str, parts: dict[str, str], **changes: Any) -> list[dict[str, Any]]:
    """The records of an attack on short texts, without their times."""
    model, data = folder / "model", folder / "test.jsonl"
    if not model.exists():
        fitted(ad.NoNoise(), length=6).save(model)
        write_rows(data, [{"text": text, "label": label} for text, label in texts(12, 6, seed=8)])
    settings = replace(FEW, **{"inputs": 6, "queries": 400} | changes)
    used = {part: value for part, value in parts.items() if part in USED_PARTS[recipe]}
    job = AttackJob(model, Source((str(data),)), folder / name, recipe, settings, parts=used)
    return [record | {"seconds": 0} for record in attack_data(job, progress=False).records]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recipe", TEXTATTACK)
def test_recipes_run_on_given_parts(parts: dict[str, str], tmp_path: Path, recipe: str) -> None:
    """BAE-I inserts, BAE-R and BERT-Attack replace, CLARE does both; without a tagger it merges nothing."""
    records = attacked(tmp_path, "first", recipe, parts)
    assert attacked(tmp_path, "second", recipe, parts) == records  # everything random is seeded
    assert {record["outcome"] for record in records} <= {"success", "failure", "skipped"}
    assert all(record["queries"] <= 401 for record in records)
    rows = {number: text for number, (text, _) in enumerate(texts(12, 6, seed=8), start=1)}
    changes = []
    for record in records:
        if record["outcome"] == "success":
            assert record["verified"]
            assert record["distance"] >= 1
            assert record["answer_after"] != record["truth"]
            changes.append(len(record["text"].split()) - len(rows[record["row"]].split()))
    assert changes
    if recipe not in ("deepwordbug", "textfooler"):
        assert min(changes) >= (recipe == "bae-i")
        assert any(changes) == (recipe in ("bae-i", "clare"))


def composed(recipe: str, parts: dict[str, str]) -> Any:
    return TextAttackAttacker(Target(fitted(ad.NoNoise(), length=6).certifier(), FEW), recipe, parts).attack


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_candidates_are_those_of_the_released_code(parts: dict[str, str]) -> None:
    attacks = {recipe: composed(recipe, parts) for recipe in ("clare", "bae-i", "bert-attack")}
    assert {move.max_candidates for move in attacks["clare"].transformation.transformations} == {70}
    assert attacks["bert-attack"].transformation.max_candidates == 24
    assert attacks["bae-i"].transformation.max_candidates == 50
    from textattack.shared import AttackedText

    # replacements of a word of many subwords are 24 to the power of their number: BERT-Attack does not change it
    text = AttackedText("buy xyzxyz ab")
    changed = attacks["bert-attack"].get_transformations(text, text)
    assert {next(iter(new.attack_attrs["newly_modified_indices"])) for new in changed} == {0, 2}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_vectors_of_punctuation_are_left_out(parts: dict[str, str], tmp_path: Path) -> None:
    """GloVe has vectors for "..."; a text in which it replaces a word stops the sentence encoder of TextAttack."""
    import_textattack(parts["nltk_data"])
    path = tmp_path / "vectors.txt"
    path.write_text("buy 1 0\n... 1 0.01\ncheap 1 0.02\n- 1 0.03\n", encoding="utf-8")
    vectors = given_vectors(str(path))
    place = vectors.word2index("buy")
    assert [vectors.index2word(number) for number in vectors.nearest_neighbours(place, 5)] == ["cheap"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("recipe", "part", "option"),
    [
        ("bert-attack", "masked_lm", "--part masked_lm"),
        ("bae-r", "sentence_encoder", "--part sentence_encoder"),
        ("textfooler", "tagger", "--part tagger"),
        ("textfooler", "word_vectors", "--part word_vectors"),
        ("clare", "tagger", "--part tagger"),
    ],
)
def test_a_missing_part_is_named(
    parts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, part: str, option: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fitted(ad.NoNoise(), length=12).save(tmp_path / "model")
    data = write_rows(tmp_path / "test.jsonl", [{"text": text, "label": label} for text, label in texts(4, 12)])
    given = {name: value for name, value in parts.items() if name != part and name in USED_PARTS[recipe]}
    job = AttackJob(tmp_path / "model", Source((str(data),)), tmp_path / "run", recipe, FEW, parts=given)
    with pytest.raises(ValueError, match=f"the recipe '{recipe}' needs a .*{option}"):
        attack_data(job, progress=False)
    assert not (tmp_path / "run").exists()
