"""The recipes of TextAttack on parts that the test makes; without the extra: queries, files of parts, errors."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from string import ascii_lowercase
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.attacks import textattack_savings
from adaptdel.attacks.attack_run import AttackJob, attack_data, attack_together, read_attack_run
from adaptdel.attacks.recipes import RECIPES, TEXTATTACK, USED_PARTS
from adaptdel.attacks.target import TimeLimitReached
from adaptdel.attacks.textattack_parts import Parts, import_textattack, read_vectors, read_words
from adaptdel.attacks.textattack_predictions import first_combinations, tokens_around
from adaptdel.attacks.textattack_recipes import BUILDERS, VoteShares
from adaptdel.attacks.textattack_savings import Candidates, limited_distance, quick_texts
from adaptdel.hyperparameters import ATTACK
from adaptdel.runs.inputs import Source
from benchmarks.attacks import own_classes

from ..run_files import run, write_rows
from .conftest import BOTH, HAM, SPAM, fitted, texts

FEW = replace(ATTACK, inputs=3, queries=150, verify_votes=1000)


def shares(model: ad.SmoothedClassifier, *, fresh: bool = False, **changes: Any) -> VoteShares:
    return VoteShares(model.certifier(), replace(FEW, seconds=1e9, **changes), fresh=fresh)


def test_a_query_is_a_table_of_vote_shares(deletion: ad.SmoothedClassifier) -> None:
    batch = [text for text, _ in texts(6, 40, seed=2)]
    query = shares(deletion)
    table = query(batch)
    assert table.shape == (6, 2)
    assert np.allclose(table.sum(axis=1), 1)  # so that TextAttack applies no softmax
    assert np.array_equal(table * 100, np.round(table * 100))
    assert (query.spent.queries, query.spent.votes) == (6, 600)
    assert np.array_equal(np.concatenate([query([text]) for text in batch]), table)  # whatever the batch
    assert np.array_equal(query(batch), table)  # one draw for each text


def test_fresh_votes_are_drawn_anew(deletion: ad.SmoothedClassifier) -> None:
    batch = [" ".join(random.Random(seed).choices([*SPAM, *HAM], k=40)) for seed in range(6)]
    query = shares(deletion, fresh=True)
    first, second = query(batch), query(batch)
    assert not np.array_equal(first, second)
    assert np.abs(first - second).max() < 0.4
    again = shares(deletion, fresh=True)
    assert np.array_equal(again(batch), first)  # reproducible


def test_a_threshold_is_at_one_half(deletion: ad.SmoothedClassifier) -> None:
    batch = [" ".join(random.Random(seed).choices([*SPAM, *HAM], k=40)) for seed in range(30)]
    plain = shares(deletion)(batch)[:, 1]
    for threshold in (0.2, 0.8):
        model = ad.SmoothedClassifier(deletion.base_, deletion.noise_, threshold=threshold, progress=False)
        scaled = shares(model)(batch)
        assert np.array_equal(np.argmax(scaled, axis=1) == 1, plain > threshold)
        assert np.allclose(scaled.sum(axis=1), 1)


def test_the_time_limit(deletion: ad.SmoothedClassifier) -> None:
    query = VoteShares(deletion.certifier(), replace(FEW, seconds=1e-9), fresh=False)
    with pytest.raises(TimeLimitReached):
        query(["a text"])


def test_every_recipe_of_the_paper_has_a_builder() -> None:
    assert set(BUILDERS) == set(TEXTATTACK)


def test_files_of_parts(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("good 1.0 2.0\nbad -1.0 0.5\n", encoding="utf-8")
    words, vectors = read_vectors(path)
    assert words == ["good", "bad"]
    assert vectors.tolist() == [[1.0, 2.0], [-1.0, 0.5]]
    for wrong in ("", "good 1.0 2.0\nbad 1.0\n", "good x y\n"):
        path.write_text(wrong, encoding="utf-8")
        with pytest.raises(ValueError, match="word vectors must"):
            read_vectors(path)
    path.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no stop words"):
        read_words(str(path))
    with pytest.raises(ValueError, match="one word per line"):
        read_words(str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="parts must be some of masked_lm"):
        Parts("clare", {"model": "x"})


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


def test_candidates_are_kept_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textattack_savings, "KEPT_CANDIDATES", 8)
    first, *others = [SimpleNamespace(text=str(number), attack_attrs={"index": number}) for number in range(9)]
    known = Candidates()
    assert known.get("a", 1) is None
    known.put("a", [first, *others[:2]], complete=False)  # more would follow, if more queries were left
    assert known.get("a", 3) == [first, *others[:2]]
    assert known.get("a", 4) is None
    known.put("a", [first, *others[:3]], complete=True)
    first.attack_attrs.clear()  # as TextAttack does at the end of an attack
    assert [candidate.attack_attrs["index"] for candidate in known.get("a", 100) or []] == [0, 1, 2, 3]
    known.put("b", [], complete=True)
    assert known.get("b", 100) == []
    known.put("c", others[3:], complete=True)  # nine in all
    assert known.get("a", 1) is None
    assert known.get("c", 1) == others[3:]
    known.begin("another input")
    assert known.get("c", 1) is None


@pytest.mark.parametrize("context", ["0", "7", "511", "-8", "abc", ""])
def test_the_context_of_a_masked_language_model_is_checked(context: str) -> None:
    with pytest.raises(ValueError, match="must be a number of tokens from 8 to 510"):
        Parts("clare", {"masked_lm_context": context})


def test_combinations_of_many_subwords_end() -> None:
    predicted = [[*range(8)]] * 40
    assert first_combinations(predicted, str, lambda word: False, 8) == []
    assert len(first_combinations(predicted, str, lambda word: True, 8)) == 8


def test_a_word_of_many_subwords_is_read_whole() -> None:
    ids = list(range(100, 140))
    for start in range(1, 27):
        sequence, place = tokens_around(ids, start, 12, 8)
        assert sequence[place : place + 12] == tuple(ids[start : start + 12])
        assert (sequence[0], sequence[-1], len(sequence)) == (100, 139, 14)


# With the extra


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A tiny masked language model with random weights, which also encodes sentences; vectors; stop words."""
    if find_spec("textattack") is None:
        pytest.skip("needs TextAttack: make attack-env, then make attack-test")
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
    (folder / "stop.txt").write_text("\n".join(BOTH) + "\n", encoding="utf-8")
    return {
        "masked_lm": str(folder / "lm"),
        "sentence_encoder": str(folder / "lm"),
        "word_vectors": str(folder / "glove.txt"),
        "tagger": "none",
        "stop_words": str(folder / "stop.txt"),
    }


def attacked(folder: Path, name: str, recipe: str, parts: dict[str, str], **changes: Any) -> list[dict[str, Any]]:
    """The records of an attack on short texts, without their times."""
    model, data = folder / "model", folder / "test.jsonl"
    if not model.exists():
        fitted(ad.NoNoise(), length=6).save(model)
        write_rows(data, [{"text": text, "label": label} for text, label in texts(12, 6, seed=8)])
    settings = replace(FEW, **{"inputs": 6, "queries": 400} | changes)
    used = {part: value for part, value in parts.items() if part in USED_PARTS[recipe]}
    job = AttackJob(model, Source(str(data)), folder / name, recipe, settings, parts=used)
    return [record | {"seconds": 0} for record in attack_data(job, progress=False).records]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recipe", TEXTATTACK)
def test_recipes_run_on_given_parts(parts: dict[str, str], tmp_path: Path, recipe: str) -> None:
    records = attacked(tmp_path, "first", recipe, parts)
    assert attacked(tmp_path, "second", recipe, parts) == records  # everything random is seeded
    outcomes = {record["outcome"] for record in records}
    assert outcomes <= {"success", "failure", "skipped"}
    assert "success" in outcomes
    assert all(record["queries"] <= 401 for record in records)
    for record in records:
        if record["outcome"] == "success":
            assert record["verified"]
            assert record["distance"] >= 1
            assert record["answer_after"] != record["truth"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recipe", TEXTATTACK)
@pytest.mark.parametrize("queries", [20, 400])
def test_less_work_gives_the_same_results(parts: dict[str, str], tmp_path: Path, recipe: str, queries: int) -> None:
    """TextAttack's own attack, swaps and padding, and a model and an encoder that compute everything."""
    quick = attacked(tmp_path, "quick", recipe, parts, queries=queries)
    with own_classes():
        whole = attacked(tmp_path, "whole", recipe, parts, queries=queries)
    assert whole == quick


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recipe", ["clare", "bae-i", "bert-attack", "textfooler", "deepwordbug"])
def test_models_that_are_attacked_together_get_the_same_results(
    parts: dict[str, str], tmp_path: Path, recipe: str
) -> None:
    """Candidates and predictions of one model are used for the next."""
    noises = {"none": ad.NoNoise(), "deletion": ad.Deletion(ad.FixedRate(0.5)), "masking": ad.Masking(0.5)}
    for name, noise in noises.items():
        fitted(noise, length=12).save(tmp_path / name)
    rows = [{"text": text, "label": label} for text, label in texts(12, 12, seed=8)]
    data = write_rows(tmp_path / "test.jsonl", rows)
    used = {part: value for part, value in (parts | {"masked_lm_context": "8"}).items() if part in USED_PARTS[recipe]}
    settings = replace(FEW, inputs=4, queries=150)

    def jobs(folder: str) -> list[AttackJob]:
        return [
            AttackJob(tmp_path / name, Source(str(data)), tmp_path / folder / name, recipe, settings, parts=used)
            for name in noises
        ]

    alone = []
    for job in jobs("alone"):
        alone.append([record | {"seconds": 0} for record in attack_data(job, progress=False).records])
    together = attack_together(jobs("together"), progress=False)
    assert [[record | {"seconds": 0} for record in run.records] for run in together] == alone
    assert len({str(records) for records in alone}) > 1
    assert all(run.manifest["parts"] == used for run in together)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_masked_language_model_that_reads_some_tokens_around_a_word(parts: dict[str, str]) -> None:
    import_textattack(parts["stop_words"])
    some: Any = Parts("bae-i", parts | {"masked_lm_context": "8"}).masked_lm()["masked_language_model"]
    whole: Any = Parts("bae-i", parts).masked_lm()["masked_language_model"]
    words = [*SPAM, *HAM] * 4
    place = len(words) // 2
    masked = [*words[:place], "[MASK]", *words[place + 1 :]]
    predicted = some.words([" ".join(masked)], most=20, least=0.0)
    assert predicted == whole.words([" ".join(masked[place - 3 : place + 5])], most=20, least=0.0)
    assert predicted != whole.words([" ".join(masked)], most=20, least=0.0)
    assert len(predicted[0]) == 20
    calls: list[int] = []
    encode = some._encode

    def counted(sequences: Any) -> Any:
        calls.append(len(sequences))
        return encode(sequences)

    some._encode = counted
    far = [*masked[:2], "friday", *masked[3:]]
    assert some.words([" ".join(far)] * 2, most=5, least=0.0) == [predicted[0][:5]] * 2
    assert calls == []  # a change elsewhere needs no prediction
    near = [*masked[: place - 1], "friday", *masked[place:]]
    some.words([" ".join(near)] * 2, most=5, least=0.0)
    assert calls == [1]
    likely = some.words([" ".join(masked)], most=20, least=0.02)[0]
    assert likely == predicted[0][: len(likely)]
    assert len(likely) < 20
    assert some.words(["[MASK] " * 1, " ".join(["lunch"] * 600 + ["[MASK]"])], most=1, least=0.0)[1] == []


STRANGE_TEXTS = [
    "",
    "...",
    "to be, or not  to be",
    "don't 'quote' -- an x_y -- of\tme@example.org *now*",
    "  a line\nand   another one.\n",
    "I <SPLIT> am I",
    "<SPLIT>",
    "\u4f60\u597d friday lunch",
    "a \u4f60\u597db c",
    "\u00dcn\u00efc\u00f6de, \ud835\udfd5 and \u0435",
    *(text for text, _ in texts(4, 30, seed=1)),
]
STRANGE_WORDS = ["word", "", "two words", "...", "x.", "[UNK]", "-a-", "\u4f60", "_", " b", "to"]


def edited_texts(text: str, seed: int) -> list[Any]:
    """What TextAttack knows about a text after each of some edits, or the error it raises."""
    from textattack.shared import AttackedText

    rng = random.Random(seed)
    known: list[Any] = []
    try:
        current = AttackedText(text)
        known.append(list(current.words))
        for _ in range(30 if current.words else 0):
            place = rng.randrange(len(current.words) + (rng.random() < 0.1))
            edit = rng.choice([current.replace_word_at_index, current.insert_text_before_word_index])
            edited = edit(place, rng.choice(STRANGE_WORDS))
            attributes = dict(edited.attack_attrs)
            assert attributes.pop("previous_attacked_text") is current
            attributes["original_index_map"] = attributes["original_index_map"].tolist()
            windows = [edited.text_window_around_index(at, 3) for at in range(len(edited.words))]
            known.append((edited.text, list(edited.words), attributes, windows))
            if rng.random() < 0.5 and edited.words:
                current = edited
    except (IndexError, ValueError) as error:
        known.append(repr(error))
    return known


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_quick_texts_are_those_of_textattack(parts: dict[str, str]) -> None:
    import_textattack(parts["stop_words"])
    from textattack.shared import attacked_text

    split = attacked_text.words_from_text
    compared = 0
    for number, text in enumerate(STRANGE_TEXTS * 4):
        slow = edited_texts(text, number)
        with quick_texts():
            assert edited_texts(text, number) == slow
        compared += len(slow)
    assert compared > 400
    assert attacked_text.words_from_text is split


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_limited_distance_is_that_of_textattack(parts: dict[str, str]) -> None:
    import_textattack(parts["stop_words"])
    from textattack.constraints.overlap import LevenshteinEditDistance, MaxWordsPerturbed
    from textattack.shared import AttackedText

    slow = LevenshteinEditDistance(5)
    quick = limited_distance(slow)
    assert type(quick) is not type(slow)
    assert quick.compare_against_original == slow.compare_against_original
    rng, outcomes = random.Random(0), set()
    for _ in range(200):
        first = "".join(rng.choices("ab ", k=12))
        second = first if rng.random() < 0.1 else "".join(rng.choices("ab ", k=rng.randrange(8, 16)))
        pair = AttackedText(second), AttackedText(first)
        assert quick._check_constraint(*pair) == slow._check_constraint(*pair)
        outcomes.add(slow._check_constraint(*pair))
    assert outcomes == {True, False}
    other = MaxWordsPerturbed(max_percent=0.4)
    assert limited_distance(other) is other


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_vectors_of_punctuation_are_left_out(parts: dict[str, str], tmp_path: Path) -> None:
    """GloVe has vectors for "..."; a text in which it replaces a word stops the sentence encoder of TextAttack."""
    import_textattack(parts["stop_words"])
    lines = ["buy 1 0", "... 1 0.01", "cheap 1 0.02", "- 1 0.03"]
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    vectors = Parts("textfooler", {"word_vectors": str(tmp_path / "vectors.txt")}).word_vectors()
    place = vectors.word2index("buy")
    assert [vectors.index2word(number) for number in vectors.nearest_neighbours(place, 5)] == ["cheap"]
    (tmp_path / "vectors.txt").write_text("... 1 0\n", encoding="utf-8")
    with pytest.raises(ValueError, match="holds no vector of a word"):
        Parts("textfooler", {"word_vectors": str(tmp_path / "vectors.txt")}).word_vectors()


def write_tagger(folder: Path) -> str:
    """NLTK's data of a tagger that knows the words of the tests and takes all others for nouns."""
    place = folder / "taggers" / "averaged_perceptron_tagger_eng"
    place.mkdir(parents=True)
    known = dict.fromkeys(SPAM, "VB") | dict.fromkeys(HAM, "JJ") | dict.fromkeys(BOTH, "DT")
    tables: dict[str, Any] = {"weights": {"bias": {"NN": 1.0}}, "tagdict": known, "classes": ["DT", "JJ", "NN", "VB"]}
    for name, values in tables.items():
        (place / f"averaged_perceptron_tagger_eng.{name}.json").write_text(json.dumps(values), encoding="utf-8")
    (folder / "taggers" / "universal_tagset").mkdir()
    lines = ("DT\tDET", "JJ\tADJ", "NN\tNOUN", "VB\tVERB")
    (folder / "taggers" / "universal_tagset" / "en-ptb.map").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_words_are_merged_by_the_tags_of_a_given_tagger(
    parts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_textattack(parts["stop_words"])
    import nltk

    monkeypatch.setattr(nltk.data, "path", list(nltk.data.path))  # where other tests must not find the tagger
    from textattack.shared import AttackedText

    loaded = Parts("clare", parts | {"tagger": write_tagger(tmp_path / "nltk")})
    [merges] = loaded.merges(**loaded.masked_lm(), max_candidates=5, min_confidence=0.0)
    text = AttackedText("the buy lunch friday the")  # two pairs can be merged: verb and adjective, two adjectives
    merged = merges(text)
    assert {len(other.words) for other in merged} == {4}
    places = {next(iter(other.attack_attrs["newly_modified_indices"])) for other in merged}
    assert places == {1, 2}
    assert Parts("clare", parts).merges() == []  # the tagger of the parts is "none"
    records = attacked(tmp_path, "clare", "clare", parts | {"tagger": str(tmp_path / "nltk")})
    assert attacked(tmp_path, "again", "clare", parts | {"tagger": str(tmp_path / "nltk")}) == records
    assert "success" in {record["outcome"] for record in records}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_all_recipes_by_the_command_and_in_the_report(
    parts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted(ad.Deletion(ad.FixedRate(0.5)), length=6).save(tmp_path / "model")
    rows = [{"text": text, "label": label} for text, label in texts(6, 6, seed=8)]
    strange = [{"text": text, "label": "ham"} for text in ("...", "?! --", "lunch", "\u4f60\u597d friday")]
    data = write_rows(tmp_path / "test.jsonl", [*rows, *strange])
    options = [item for name, value in parts.items() for item in (f"--{name.replace('_', '-')}", value)]
    limits = ("--inputs", 10, "--queries", 100)
    common = (tmp_path / "model", "--data", data, *options, *limits)
    assert run("attack", *common, "--recipe", "all", "--out", tmp_path / "run", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["attacks"]
    assert [row["recipe"] for row in rows] == list(RECIPES)
    assert all(row["inputs"] == 10 for row in rows)
    folders = [tmp_path / "run" / recipe for recipe in RECIPES]
    assert run("report", *folders, "--out", tmp_path / "report") == 0
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert all(recipe in page for recipe in RECIPES)
    stop = ("--stop-words", parts["stop_words"])
    single = (tmp_path / "model", "--data", data, *stop, *limits, "--recipe", "deepwordbug")
    fresh = tmp_path / "fresh"
    assert run("attack", *single, "--fresh-votes", "--out", fresh) == 0
    assert json.loads((fresh / "manifest.json").read_text())["fresh"] is True
    assert run("attack", *single, "--workers", 2, "--out", tmp_path / "workers") == 0
    one, two = (read_attack_run(place).records for place in (tmp_path / "run" / "deepwordbug", tmp_path / "workers"))
    assert [record | {"seconds": 0} for record in one] == [record | {"seconds": 0} for record in two]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("recipe", "part", "option"),
    [
        ("bert-attack", "masked_lm", "--masked-lm"),
        ("bae-i", "sentence_encoder", "--sentence-encoder"),
        ("textfooler", "tagger", "--tagger"),
        ("clare", "tagger", "--tagger"),
    ],
)
def test_a_missing_part_is_named(
    parts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, part: str, option: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    fitted(ad.NoNoise(), length=12).save(tmp_path / "model")
    data = write_rows(tmp_path / "test.jsonl", [{"text": text, "label": label} for text, label in texts(4, 12)])
    given = {name: value for name, value in parts.items() if name != part and name in USED_PARTS[recipe]}
    job = AttackJob(tmp_path / "model", Source(str(data)), tmp_path / "run", recipe, FEW, parts=given)
    with pytest.raises(ValueError, match=f"the recipe '{recipe}' needs a .*{option}"):
        attack_data(job, progress=False)
    assert not (tmp_path / "run").exists()
