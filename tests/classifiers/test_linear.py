from __future__ import annotations

import json
import re
import shutil
import tracemalloc
from collections.abc import Callable, Hashable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from adaptdel import Deletion, FixedRate, LengthRate, Masking, NoNoise
from adaptdel.classifiers import linear_training
from adaptdel.classifiers.base import Request
from adaptdel.classifiers.features import (
    HashedFeatures,
    ScoreCache,
    hashed,
    ngrams,
    parts,
    scores,
    token_bytes,
    token_from_json,
    token_to_json,
)
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.classifiers.linear_training import Fitted, noisy_counts, rounded
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.noise import Noise, RandomDeletion
from adaptdel.text.units import Bytes, Characters, Tokens, Words

HASHES = [898694284, 1745896126, 1297835806, 3934446647]
NOISES: list[Noise | None] = [None, Deletion(FixedRate(0.5)), Deletion(LengthRate(0.5, 6)), Masking(0.5), NoNoise()]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


def toy(classes: int, examples: int = 300, seed: int = 0) -> tuple[list[Tokens], list[str]]:
    """Words of which a third give the class away, and one other word that all share."""
    draw = rng(seed)
    tokens: list[Tokens] = []
    labels = []
    for _ in range(examples):
        label = int(draw.integers(classes))
        telling = draw.random(int(draw.integers(8, 30))) < 1 / 3
        words = [f"Tell{label}-{draw.integers(4)}" if told else f"word{draw.integers(50)}" for told in telling]
        tokens.append((*words, "and"))
        labels.append(f"class {label}")
    return tokens, labels


def fitted(classes: int = 2, noise: Noise | None = None, seed: int = 0, **settings: Any) -> LinearClassifier:
    tokens, labels = toy(classes)
    loss = settings.pop("loss", "auto")
    model = LinearClassifier(**{"bits": 12, **settings})
    return model.fit(tokens, labels, noise=noise, copies=3, seed=seed, loss=loss)


def votes(model: LinearClassifier, tokens: Tokens, kept: BoolArray, *, masking: bool = False) -> IntArray:
    return model.votes([Request(model.prepare("an input", tokens, Words(), masking=masking), kept)])[0]


def predicted(model: LinearClassifier, examples: list[Tokens]) -> list[Any]:
    """The labels of whole inputs."""
    numbers = (int(votes(model, example, np.ones((1, len(example)), dtype=np.bool_))[0]) for example in examples)
    return [(model.classes_ or [])[number] for number in numbers]


def random_model(draw: np.random.Generator, classes: int, largest: int = 2**20, bits: int = 6) -> LinearClassifier:
    """A model with weights as large as they may be, among them ties."""
    model = LinearClassifier(bits=bits)
    columns = 1 if classes == 2 else classes
    weights = draw.integers(-largest, largest + 1, size=(2**bits + 1, columns)).astype(np.int32)
    bias = draw.integers(-largest, largest + 1, size=columns).astype(np.int32)
    model._set(HashedFeatures(bits), list(range(classes)), weights, bias, 20)
    model.training_ = {}
    return model


def reference(model: LinearClassifier, tokens: Tokens, kept: BoolArray, masking: bool) -> list[int]:
    """Token by token, in fractions."""
    worth = Fraction(1, 2**model.exponent_)
    answers = []
    for row in kept:
        found = [int(b) * worth for b in model.bias_]
        for token, keep in zip(tokens, row, strict=True):
            columns = [hashed(part, model.bits) for part in parts(token)]
            if not keep:
                columns = [len(model.weights_) - 1] if masking else []
            for column in columns:
                found = [s + int(w) * worth for s, w in zip(found, model.weights_[column], strict=True)]
        if len(found) == 1:
            found = [Fraction(0), *found]
        answers.append(found.index(max(found)))
    return answers


@pytest.mark.parametrize("masking", [False, True])
@given(
    classes=st.integers(2, 5),
    length=st.integers(0, 60),
    rows=st.integers(0, 12),
    largest=st.sampled_from([1, 1000, 2**20]),
    seed=st.integers(0, 2**32),
)
def test_votes_are_exact(masking: bool, classes: int, length: int, rows: int, largest: int, seed: int) -> None:
    draw = rng(seed)
    model = random_model(draw, classes, largest)
    tokens = tuple(f"w{draw.integers(30)}-x" for _ in range(length))
    kept = draw.random((rows, length)) < 0.5
    assert votes(model, tokens, kept, masking=masking).tolist() == reference(model, tokens, kept, masking)


@pytest.mark.parametrize("masking", [False, True])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize(("length", "precision"), [(10, np.float32), (700, np.float64)])
def test_votes_do_not_depend_on_order_or_batches(classes: int, masking: bool, length: int, precision: Any) -> None:
    draw = rng(1)
    model = random_model(draw, classes)
    tokens = tuple(f"w{draw.integers(500)}" for _ in range(length))
    kept = draw.random((300, length)) < 0.5
    model.bias_ -= (
        scores(model.prepare("an input", tokens, Words(), masking=masking).data, kept).mean(axis=0).astype(np.int32)
    )
    prepared = model.prepare("an input", tokens, Words(), masking=masking)  # now every class gets votes
    assert prepared.data.weights.dtype == precision
    whole = model.votes([Request(prepared, kept)])[0]
    assert whole[:20].tolist() == reference(model, tokens, kept[:20], masking)
    assert len(set(whole.tolist())) == classes
    order = draw.permutation(300)
    assert np.array_equal(votes(model, tokens, kept[order], masking=masking), whole[order])
    turned = draw.permutation(length)
    moved = tuple(tokens[place] for place in turned)
    assert np.array_equal(votes(model, moved, kept[:, turned], masking=masking), whole)
    for size in (1, 7, 256):
        chunks = [Request(prepared, kept[start : start + size]) for start in range(0, 300, size)]
        assert np.array_equal(np.concatenate(model.votes(chunks)), whole)


def test_single_precision_is_used_up_to_its_last_whole_number() -> None:
    """Sums up to 2**24 are exact in it; beyond, 2**24 + 1 is not, and double precision takes over."""
    model = random_model(rng(), 2)
    model.weights_[:] = 2**20
    model.bias_[:] = -(2**24) + 1
    for length, precision in ((16, np.float32), (17, np.float64)):
        tokens = tuple(range(length))
        assert model.prepare("an input", tokens, Words()).data.weights.dtype == precision
        kept = np.tri(length + 1, length, -1, dtype=np.bool_)
        assert votes(model, tokens, kept).tolist() == [0] * 16 + [1] * (length - 15)
    model._cached = ScoreCache(1)
    column = next(token for token in range(17, 99) if hashed(token, 6) not in {hashed(n, 6) for n in range(16)})
    model.weights_[hashed(column, 6)] = 1
    model.bias_[:] = -(2**24)
    assert votes(model, (*range(16), column), np.ones((1, 17), dtype=np.bool_)).tolist() == [1]


def test_ties_go_to_the_lowest_class() -> None:
    for classes in (2, 4):
        model = random_model(rng(), classes)
        model.weights_[:] = 0
        model.bias_[:] = 0
        assert votes(model, ("a", "b"), np.ones((3, 2), dtype=np.bool_)).tolist() == [0, 0, 0]


def test_a_long_input_needs_little_memory_besides_its_masks() -> None:
    model = random_model(rng(), 3)
    tokens = tuple(np.resize(np.arange(256), 10**6).tolist())
    prepared = model.prepare("an input", tokens, Bytes())
    kept = rng().random((4, 10**6)) < 0.5
    tracemalloc.start()
    found = model.votes([Request(prepared, kept)])[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**21
    exact = kept.astype(np.int64) @ prepared.data.weights.astype(np.int64) + prepared.data.offset.astype(np.int64)
    assert np.array_equal(found, exact.argmax(axis=1))


def test_hashes_are_the_same_for_ever() -> None:
    tokens: list[Hashable] = ["good", b"good", 7, ("a", b"b", 1), "", "\udc80", -1]
    assert [hashed(token, 32) for token in tokens[:4]] == HASHES
    assert [hashed(token, 18) for token in tokens[:4]] == [value % 2**18 for value in HASHES]
    assert len({token_bytes(token) for token in tokens}) == len(tokens)
    assert token_bytes(np.int64(7)) == token_bytes(7)
    assert token_bytes(("ab", "c")) != token_bytes(("a", "bc"))
    for token in (*tokens, b"\x00\xff", ("a", (b"b", 1)), ()):
        assert token_from_json(json.loads(json.dumps(token_to_json(token)))) == token


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_learns(noise: Noise | None, classes: int) -> None:
    model = fitted(classes, noise)
    assert model.classes_ == [f"class {label}" for label in range(classes)]
    tokens, labels = toy(classes, seed=1)
    assert np.mean([a == b for a, b in zip(predicted(model, tokens), labels, strict=True)]) > 0.95
    if noise is None:
        return
    right: list[bool] = []
    for example, label in zip(tokens, labels, strict=True):
        kept = noise.sample(len(example), 30, rng(len(right)))
        found = votes(model, example, kept, masking=isinstance(noise, Masking))
        right.append(model.classes_[np.bincount(found).argmax()] == label)
    assert np.mean(right) > 0.9


def test_training_finds_the_minimum() -> None:
    """Against the conditions of the optimum, computed densely: the gradient of the penalised loss is zero."""
    tokens, labels = toy(3, 60)
    model = LinearClassifier(bits=8).fit(tokens, labels, l2=1e-3, iterations=2000, class_weight=None)
    assert model.classes_ is not None
    weights = np.ldexp(model.weights_.astype(np.float64), -model.exponent_)
    counts = np.zeros((60, 257))
    for row, example in enumerate(tokens):
        for token in example:
            for part in parts(token):
                counts[row, hashed(part, 8)] += 1
    logits = counts @ weights + np.ldexp(model.bias_.astype(np.float64), -model.exponent_)
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    slope = (share - (np.array(labels)[:, None] == np.array(model.classes_))) / 60
    penalty = 1e-3 * np.mean([len(example) for example in tokens])
    assert model.training_["penalty"] == pytest.approx(penalty)
    assert np.abs(counts.T @ slope + penalty * weights).max() < 1e-3
    assert np.abs(slope.sum(axis=0)).max() < 1e-3
    assert np.abs(counts.T @ (1 / 3 - (np.array(labels)[:, None] == np.array(model.classes_))) / 60).max() > 0.1


@pytest.mark.parametrize("noise", [Deletion(FixedRate(0.5)), Masking(0.5)], ids=repr)
def test_noise_does_not_depend_on_memory_or_neighbours(noise: Noise, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [rng(n).integers(0, 20, size=n % 7 * 10) for n in range(25)]
    whole = noisy_counts(codes, 20, noise=noise, copies=4, seed=3).toarray()
    assert whole.shape == (100, 21)
    fewer = noisy_counts(codes[:5], 20, noise=noise, copies=4, seed=3).toarray()
    assert np.array_equal(fewer, whole[:20])
    monkeypatch.setattr(linear_training, "BUFFER", 10)
    assert np.array_equal(noisy_counts(codes, 20, noise=noise, copies=4, seed=3).toarray(), whole)
    masks = [noise.masks(len(code)) if isinstance(noise, Masking) else 0 for code in codes]
    assert np.array_equal(whole[:, 20], np.repeat(masks, 4))
    assert not np.array_equal(noisy_counts(codes, 20, noise=noise, copies=4, seed=4).toarray(), whole)


def test_training_is_reproducible_by_seed() -> None:
    noise, random_rates = Deletion(FixedRate(0.7)), RandomDeletion()
    cases: list[dict[str, Any]] = [{"noise": noise, "loss": "copies"}, {"noise": random_rates, "loss": "votes"}]
    for settings in cases:
        first, again, other = fitted(3, **settings), fitted(3, **settings), fitted(3, **settings, seed=1)
        assert first.fingerprint() == again.fingerprint()
        assert np.array_equal(first.weights_, again.weights_)
        assert first.training_ == again.training_
        assert first.fingerprint() != other.fingerprint()
    assert fitted(2, noise).fingerprint() == fitted(2, noise, seed=1).fingerprint()  # no copy is drawn
    assert fitted(3, NoNoise()).fingerprint() == fitted(3).fingerprint() == fitted(3, seed=5).fingerprint()


def test_rounding_keeps_20_bits() -> None:
    for largest in (3.7, 2.0**-40, 1e9, 1.0):
        weights = np.array([[largest], [-largest / 3], [0.0]])
        whole, bias, exponent = rounded(Fitted(weights, np.array([largest / 7]), {}))
        assert 2**19 <= np.abs(whole).max() <= 2**20
        assert np.abs(np.ldexp(whole.astype(np.float64), -exponent) - weights).max() <= 2.0**-20 * largest
        assert bias.shape == (1,)
    whole, bias, exponent = rounded(Fitted(np.zeros((2, 1)), np.zeros(1), {}))
    assert not whole.any()


def test_a_folder_holds_how_the_model_was_trained(tmp_path: Path) -> None:
    model, folder = fitted(3, Masking(0.5)), tmp_path / "new" / "model"
    for _ in "ab":  # also over itself
        model.save(folder)
        assert sorted(path.name for path in folder.iterdir()) == ["linear.json", "linear.safetensors"]
        assert LinearClassifier.load(folder).training_ == model.training_
    assert model.training_["noise"] == Masking(0.5).to_dict()


def orders(rows: int, seed: int) -> tuple[list[Tokens], list[int]]:
    """Texts of the same characters, whose order alone tells the class."""
    draw = rng(seed)
    halves = (("AC", "GT"), ("CA", "TG"))
    return [tuple("".join(draw.choice(halves[n % 2], 15))) for n in range(rows)], [n % 2 for n in range(rows)]


@pytest.mark.parametrize("noise", [None, Deletion(FixedRate(0.2)), Masking(0.2)], ids=repr)
def test_runs_of_characters(noise: Noise | None, tmp_path: Path) -> None:
    """The votes are the sums over the runs of the kept characters, counted by hand; order is learned."""
    (tokens, labels), (unseen, truth) = orders(60, 0), orders(40, 1)
    model = LinearClassifier(bits=10, ngram=3).fit(tokens, labels, noise=noise, unit=Characters(), copies=3)
    assert predicted(model, unseen) == truth
    single = LinearClassifier(bits=10).fit(tokens, labels, noise=noise, unit=Characters(), copies=3)
    assert np.mean([a == b for a, b in zip(predicted(single, unseen), truth, strict=True)]) < 0.8
    model.save(tmp_path)
    model = LinearClassifier.load(tmp_path)
    masking = isinstance(noise, Masking)
    for example in unseen[:5]:
        kept = rng(2).random((20, len(example))) < 0.8
        prepared = model.prepare("x", example, Characters(), masking=masking)
        [table], [found] = model.copy_scores([Request(prepared, kept)]), model.votes([Request(prepared, kept)])
        for row, scored, vote in zip(kept, table, found, strict=True):
            gap = ["\ufffd"] if masking else []
            copy = "".join(str(c) for token, keep in zip(example, row, strict=True) for c in ([token] if keep else gap))
            runs = ngrams(tuple(copy), 3)
            assert len(runs) == len(copy) + 2
            assert runs[2:-2] == tuple(tuple(copy[i : i + 3].lower()) for i in range(len(copy) - 2))
            total = int(model.bias_[0]) + sum(int(model.weights_[hashed(run, 10), 0]) for run in runs)
            assert (scored.tolist(), vote) == ([0, total], int(total > 0))


def test_runs_need_characters_or_bytes_and_copies() -> None:
    tokens, labels = orders(8, 0)
    for unit in (None, Words()):
        with pytest.raises(ValueError, match="ngram"):
            LinearClassifier(ngram=2).fit(tokens, labels, unit=unit)
    with pytest.raises(ValueError, match="loss"):
        LinearClassifier(ngram=2).fit(tokens, labels, unit=Characters(), noise=Deletion(FixedRate(0.5)), loss="votes")


def test_empty_inputs_and_copies_get_the_bias() -> None:
    tokens: list[Tokens] = [("good",), ("bad",), ()] * 10
    usual: dict[str, Any] = {"noise": Deletion(FixedRate(0.5)), "class_weight": None}
    model = LinearClassifier().fit(tokens, ["pos", "neg", "pos"] * 10, **usual)
    assert predicted(model, [()]) == ["pos"]
    assert votes(model, (), np.ones((3, 0), dtype=np.bool_)).tolist() == [1, 1, 1]
    assert votes(model, ("bad",), np.array([[False], [True]])).tolist() == [1, 0]
    assert votes(model, ("bad",), np.ones((0, 1), dtype=np.bool_)).shape == (0,)
    assert model.votes([]) == []
    nothing = LinearClassifier().fit([(), (), ()], [0, 1, 1], noise=Masking(0.5), class_weight=None)
    assert predicted(nothing, [(), ("new",)]) == [1, 1]


def test_masks_weigh_as_one_feature_of_their_own() -> None:
    """Where only the length tells the class, the number of masks does."""
    tokens: list[Tokens] = [("a",) * 4, ("a",) * 12] * 20
    model = LinearClassifier().fit(tokens, [0, 1] * 20, noise=Masking(1.0), l2=1e-4, loss="copies")
    assert model.weights_[-1] > 0
    for example, label in ((("b",) * 4, 0), (("b",) * 12, 1)):
        assert votes(model, example, np.zeros((2, len(example)), dtype=np.bool_), masking=True).tolist() == [label] * 2
    assert not LinearClassifier().fit(tokens, [0, 1] * 20, noise=Deletion(FixedRate(0.5))).weights_[-1].any()


def test_labels_are_sorted_and_plain() -> None:
    tokens: list[Tokens] = [("a",), ("b",), ("c",)]
    assert LinearClassifier().fit(tokens, np.array([7, -1, 7])).classes_ == [-1, 7]
    model = LinearClassifier().fit(tokens, np.array(["z", "y", "x"]))
    assert model.classes_ == ["x", "y", "z"]
    assert type(model.classes_[0]) is str
    assert predicted(model, tokens) == ["z", "y", "x"]


PAIR: list[Tokens] = [("a",), ("b",)]


@pytest.mark.parametrize(
    ("arguments", "options", "word"),
    [
        ((PAIR, [0, 1, 1]), {}, "length"),
        ((PAIR, [1, 1]), {}, "different labels"),
        (([], []), {}, "no examples"),
        ((PAIR, [0, None]), {}, "position 1"),
        ((PAIR, [0.0, float("nan")]), {}, "position 1"),
        ((PAIR, [0, "b"]), {}, "both"),
        ((["a text", "b"], [0, 1]), {}, "split"),
        (([(0.5,), ("a",)], [0, 1]), {}, "token"),
        ((PAIR, [0, 1]), {"copies": 0}, "copies"),
        ((PAIR, [0, 1]), {"iterations": 0}, "iterations"),
        ((PAIR, [0, 1]), {"l2": -1.0}, "l2"),
        ((PAIR, [0, 1]), {"seed": -1}, "seed"),
        ((PAIR, [0, 1]), {"noise": 0.9}, "noise"),
        ((PAIR, [0, 1]), {"loss": "votez"}, "loss"),
    ],
)
def test_bad_training_input(arguments: tuple[Any, Any], options: dict[str, Any], word: str) -> None:
    model = LinearClassifier()
    with pytest.raises(ValueError, match=word):
        model.fit(*arguments, **options)
    with pytest.raises(ValueError, match="fitted"):  # it stays as it was
        model.fingerprint()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    fitted(3).save(folder)
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "other"},
        {"version": 1},
        {"features": "vocabulary"},
        {"bits": 29},
        {"bits": 11},
        {"ngram": 0},
        {"classes": "abc"},
        {"classes": ["a"]},
        {"classes": ["a", "b"]},
        {"exponent": "x"},
        {"training": None},
    ],
)
def test_a_damaged_description(saved: Path, changes: dict[str, Any], tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "linear.json"
    path.write_text(json.dumps(json.loads(path.read_text("ascii")) | changes), encoding="ascii")
    with pytest.raises(ValueError, match=re.escape(str(path))):
        LinearClassifier.load(tmp_path)


@pytest.mark.parametrize("file", ["linear.json", "linear.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"junk", b"\xff\x00{"])
def test_a_missing_or_damaged_file(saved: Path, file: str, content: bytes | None, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    (tmp_path / file).unlink()
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(str(tmp_path / file))):
        LinearClassifier.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: {"bias": arrays["bias"]},
        lambda arrays: arrays | {"weights": arrays["weights"][:-1].copy()},
        lambda arrays: arrays | {"bias": arrays["bias"].astype(np.float32)},
        lambda arrays: arrays | {"bias": np.full(3, 2**30, dtype=np.int32)},
    ],
)
def test_weights_that_do_not_fit(saved: Path, change: Callable[[Any], Any], tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    save_file(change(load_file(saved / "linear.safetensors")), tmp_path / "linear.safetensors")
    with pytest.raises(ValueError, match="must be"):
        LinearClassifier.load(tmp_path)
