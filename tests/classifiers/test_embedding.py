"""The embedding network: exact votes that depend on the copy alone, training, files."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import adaptdel as ad
from adaptdel.classifiers import embedding_training
from adaptdel.classifiers.base import Request, classifier_class
from adaptdel.classifiers.embedding import EmbeddingClassifier
from adaptdel.classifiers.embedding_module import RowOptimiser, bag_sum
from adaptdel.classifiers.integer_network import (
    GRIDS,
    FloatNetwork,
    IntegerNetwork,
    TokenFeatures,
    TokenVectors,
    count_feature,
    quantised,
)
from adaptdel.classifiers.word_encoders import StaticVectors, TransformerEncoder, write_vectors
from adaptdel.hyperparameters import EmbeddingSettings
from adaptdel.text.units import Bytes, Characters, Tokens, Unit, Words

RNG = np.random.default_rng(0)
GOOD, BAD = ["good", "great", "fine", "lovely"], ["bad", "awful", "poor", "dull"]
PLAIN = ["film", "plot", "cast", "scene", "music", "Story,", "the", "a", "and", "of"]
TINY = EmbeddingSettings(
    dimensions=8, width=8, hidden=(16,), steps=90, batch_size=64, copies_per_text=2, evaluations=3, validation=0.1
)


def texts(count: int, seed: int = 0) -> tuple[list[Tokens], list[str]]:
    rng = np.random.default_rng(seed)
    rows, labels = [], []
    for number in range(count):
        words = rng.choice(GOOD if number % 2 else BAD, 6).tolist() + rng.choice(PLAIN, 6).tolist()
        rows.append(tuple(rng.permutation(words).tolist()))
        labels.append("pos" if number % 2 else "neg")
    return rows, labels


NOISE = ad.Deletion(ad.LengthRate(0.0, 4))


class Clock:
    """A clock that moves on by the same time with every reading."""

    def __init__(self, step: float) -> None:
        self.step, self.now = step, 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def recorded_rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The learning rates of all steps from now on."""
    rates: list[float] = []
    original = embedding_training._train_step

    def step(state: Any, batch: Any) -> Any:
        loss = original(state, batch)
        rates.append(state.optimiser.param_groups[0]["lr"])
        return loss

    monkeypatch.setattr(embedding_training, "_train_step", step)
    return rates


@pytest.fixture(scope="module")
def model() -> EmbeddingClassifier:
    tokens, labels = texts(80)
    return EmbeddingClassifier(bits=8, networks=2, settings=TINY).fit(tokens, labels, noise=NOISE)


def random_model(
    precision: str = "int8", classes: int = 3, networks: int = 1, vocabulary: Any = ("film", "good", 7)
) -> EmbeddingClassifier:
    """A model with random weights, which needs no torch."""
    features = TokenFeatures(list(vocabulary), ["good", "plot"], 6, (3, 5), True)
    rng = np.random.default_rng(1)
    nets = []
    for _ in range(networks):
        shapes = [(13, 10), (10, classes)]
        nets.append(
            FloatNetwork(
                rng.normal(size=(features.size, 5)),
                rng.normal(size=(2, 5)),
                (rng.normal(size=(5, 6)), rng.normal(size=6)),
                np.abs(rng.normal(size=6)),
                (rng.normal(size=13), rng.normal(size=13)),
                [(rng.normal(size=shape), rng.normal(size=shape[1])) for shape in shapes],
                [np.full(size, 4.0) for size in (5, 6, 13, 10)],
            )
        )
    base = EmbeddingClassifier(precision=precision, bits=6, networks=networks)
    base.training_ = {}
    base.float_networks_ = nets
    base._set(features, list(range(classes)), [quantised(network, precision) for network in nets])
    return base


def scores(
    base: EmbeddingClassifier, tokens: Tokens, kept: Any, unit: Unit | None = None, *, masking: bool = False
) -> Any:
    prepared = base.prepare("input", tokens, unit or Words(), masking=masking)
    return base.scores([Request(prepared, np.asarray(kept, dtype=np.bool_))])[0]


def words(count: int, seed: int = 0) -> Tokens:
    """Known and invented words."""
    rng = np.random.default_rng(seed)
    letters = list("abcdefgh-É")
    invented = ["".join(rng.choice(letters, rng.integers(1, 9))) for _ in range(count)]
    return tuple(invented[place] if place % 3 else PLAIN[place % len(PLAIN)] for place in range(count))


def by_python(network: IntegerNetwork, features: TokenFeatures, copy: Tokens, *, masks: bool = False) -> list[float]:
    """The scores of one copy, with sums and products of Python integers and single rounded operations between."""
    real, limit = network.grid.dtype, network.grid.activations

    def clip(value: Any, least: int) -> int:
        return int(min(max(int(np.rint(value)), least), limit))

    def layer(values: list[int], weights: Any, scale: Any, shift: Any) -> list[Any]:
        whole = weights.astype(np.int64).tolist()
        sums = [sum(v * row[out] for v, row in zip(values, whole, strict=True)) for out in range(len(scale))]
        return [real(total) * scale[out] + shift[out] for out, total in enumerate(sums)]

    vectors = []
    for token in copy:
        numbers = features.learnt(token) + features.hashed(token)
        embedding = []
        for place in range(network.rows.shape[1]):
            total = real(sum(int(network.rows[number, place]) for number in numbers))
            value = total / np.sqrt(real(len(numbers))) * network.word_scale[0, place]
            if features.word(token) >= 0:
                value += real(network.pretrained[features.word(token), place]) * network.word_scale[1, place]
            embedding.append(clip(value, -limit))
        word = network.word
        vectors.append([clip(value, 0) for value in layer(embedding, word.weights, word.scale, word.shift)])
    if masks:
        vectors.append([int(value) for value in network.mask])
    width, root = len(network.mask), np.sqrt(real(max(1, len(copy))))
    pooled = [real(sum(vector[place] for vector in vectors)) / root for place in range(width)]
    pooled += [real(max((vector[place] for vector in vectors), default=0)) for place in range(width)]
    pooled.append(real(count_feature(np.array([len(copy)]))[0]))
    values = [
        clip(value * scale + shift, -limit)
        for value, scale, shift in zip(pooled, network.pool_scale, network.pool_shift, strict=True)
    ]
    for hidden in network.layers[:-1]:
        values = [clip(value, 0) for value in layer(values, hidden.weights, hidden.scale, hidden.shift)]
    last = network.layers[-1]
    return [float(value) for value in layer(values, last.weights, last.scale, last.shift)]


class TestExactness:
    @pytest.mark.parametrize("precision", ["int8", "float32"])
    @pytest.mark.parametrize("masking", [False, True])
    def test_scores_are_those_of_python_integers(self, precision: str, masking: bool) -> None:
        base = random_model(precision)
        tokens = words(40)
        kept = RNG.random((9, 40)) < np.linspace(0, 1, 9)[:, None]
        computed = scores(base, tokens, kept, masking=masking)
        features = TokenFeatures(["film", "good", 7], ["good", "plot"], 6, (3, 5), True)
        for row, mask in zip(computed.tolist(), kept, strict=True):
            copy = tuple(token for token, keep in zip(tokens, mask, strict=True) if keep)
            assert row == by_python(base.networks_[0], features, copy, masks=masking and not mask.all())

    @pytest.mark.parametrize("precision", ["int8", "float32"])
    def test_the_largest_sums_are_exact(self, precision: str) -> None:
        grid = GRIDS[precision]
        inputs = grid.most_inputs()
        assert inputs >= 1024
        row = np.full((1, inputs), grid.activations, dtype=grid.dtype)
        column = np.full((inputs, 1), grid.weights, dtype=grid.dtype)
        assert int((row @ column)[0, 0]) == inputs * grid.activations * grid.weights

    def test_both_precisions_nearly_agree(self, model: EmbeddingClassifier) -> None:
        tokens, _ = texts(20, seed=5)
        kept = RNG.random((20, 50, 12)) < 0.4
        for place, row in enumerate(tokens):
            near, exact = (scores(model.with_precision(name), row, kept[place]) for name in ("int8", "float32"))
            assert np.abs(near - exact).max() < 0.5


class TestCopyAlone:
    """The answer depends on the copy alone: not on deleted words, the order of words or other copies."""

    @pytest.mark.parametrize("precision", ["int8", "float32"])
    @pytest.mark.parametrize("networks", [1, 2])
    def test_a_copy_scores_as_an_input_of_its_own(self, precision: str, networks: int) -> None:
        base = random_model(precision, networks=networks)
        tokens = words(300)
        kept = RNG.random((40, 300)) < 0.03
        kept[0], kept[1] = False, True
        together = scores(base, tokens, kept)
        for row, mask in zip(together, kept, strict=True):
            copy = tuple(token for token, keep in zip(tokens, mask, strict=True) if keep)
            alone = scores(random_model(precision, networks=networks), copy, np.ones((1, len(copy))))
            assert alone[0].tolist() == row.tolist()

    def test_any_order_of_words_and_copies(self, model: EmbeddingClassifier) -> None:
        tokens = words(200)
        kept = RNG.random((700, 200)) < RNG.choice([0.01, 0.05, 0.6], size=(700, 1))
        expected = scores(model, tokens, kept)
        order, copies = RNG.permutation(200), RNG.permutation(700)
        shuffled = scores(model, tuple(tokens[place] for place in order), kept[copies][:, order])
        assert shuffled.tolist() == expected[copies].tolist()

    @pytest.mark.parametrize("size", [1, 2, 7, 64, 513])
    def test_any_batch(self, model: EmbeddingClassifier, size: int) -> None:
        tokens = words(100)
        prepared = model.prepare("input", tokens, Words())
        kept = RNG.random((600, 100)) < 0.08
        expected = model.votes([Request(prepared, kept)])[0]
        blocks = [Request(prepared, kept[start : start + size]) for start in range(0, 600, size)]
        assert np.concatenate(model.votes(blocks)).tolist() == expected.tolist()
        assert np.concatenate([model.votes([block])[0] for block in blocks]).tolist() == expected.tolist()

    def test_masked_words_cannot_leak(self) -> None:
        base = random_model()
        kept = np.zeros((1, 30), dtype=np.bool_)
        kept[0, [3, 9]] = True
        one = words(30)
        other = tuple(token if keep else "other" for token, keep in zip(one, kept[0], strict=True))
        assert scores(base, one, kept, masking=True).tolist() == scores(base, other, kept, masking=True).tolist()
        assert scores(base, one, kept, masking=True).tolist() != scores(base, one, kept).tolist()

    def test_tokens_that_python_holds_to_be_equal(self) -> None:
        first, second = (random_model(vocabulary=("film", 1)) for _ in range(2))
        scores(first, (1,), [[1]])
        assert scores(first, (True,), [[1]]).tolist() == scores(second, (True,), [[1]]).tolist()

    def test_a_long_input(self) -> None:
        base = random_model()
        tokens = words(1000) * 400
        kept = np.ones((2, len(tokens)), dtype=np.bool_)
        kept[1, ::2] = False
        long = scores(base, tokens, kept)
        network = base.networks_[0]
        distinct, codes = TokenVectors(base._fitted().features, [network])(tokens[:1000])
        vectors = distinct[codes]
        total = vectors.astype(np.int64).sum(axis=0) * 400
        assert total.max() > 2**24
        pooled = network._normalised(total.astype(np.int32)[None], vectors.max(axis=0)[None], np.array([len(tokens)]))
        assert network.scores(pooled).tolist() == long[:1].tolist()


class TestCache:
    def test_it_is_bounded_and_changes_nothing(self) -> None:
        base = random_model()
        vectors = TokenVectors(base._fitted().features, base.networks_, limit=50)
        for start in range(0, 2000, 100):
            tokens = [f"word{number % 7 if number % 3 else number}" for number in range(start, start + 100)]
            expected, rows = TokenVectors(base._fitted().features, base.networks_)(tokens)
            assert vectors(tokens)[0][rows].tolist() == expected[rows].tolist()
            assert len(vectors) <= 50

    def test_long_tokens_are_not_kept(self) -> None:
        base = random_model()
        vectors = TokenVectors(base._fitted().features, base.networks_)
        vectors(["x" * 10**6])
        assert len(vectors) == 0


class TestFeatures:
    FEATURES = TokenFeatures(["film", "good"], ["good"], 10, (3, 5), True)

    @pytest.mark.parametrize("token", ["", "a", "Film!", "\ud800", 7, b"", b"abcdef", ("a", 1), "é" * 10**5])
    def test_every_token_has_features(self, token: Any) -> None:
        assert self.FEATURES.hashed(token)
        assert all(2 <= number < 2 + 2**10 for number in self.FEATURES.hashed(token))
        assert len(self.FEATURES.hashed(token)) < 120

    def test_words_and_capitals(self) -> None:
        features = self.FEATURES
        assert features.learnt("Good-film") == [0, 1]
        assert features.learnt("other") == []
        assert features.word("GOOD") == 0
        assert features.word("film") == -1
        assert len({len(features.hashed(word)) for word in ("good", "Good", "GOOD")}) == 2
        assert features.hashed("Good") != features.hashed("GOOD")

    def test_count(self) -> None:
        assert count_feature(np.array([0, 1, 3, 7, 2**20 - 1])).tolist() == [0, 1, 2, 3, 20]


class TestTraining:
    def test_it_learns(self, model: EmbeddingClassifier) -> None:
        tokens, labels = texts(100, seed=9)
        kept = np.random.default_rng(3).random((100, 20, 12)) < 4 / 12
        right = 0
        for row, label, mask in zip(tokens, labels, kept, strict=True):
            votes = model.votes([Request(model.prepare("input", row, Words()), mask)])[0]
            right += model.label(int(np.bincount(votes, minlength=2).argmax())) == label
        assert right >= 97

    def test_the_same_seed_gives_the_same_model(self, model: EmbeddingClassifier) -> None:
        tokens, labels = texts(80)
        again = model.unfitted().fit(tokens, labels, noise=NOISE)
        other = model.unfitted().fit(tokens, labels, noise=NOISE, seed=1)
        assert again.fingerprint() == model.fingerprint() != other.fingerprint()

    @pytest.mark.parametrize(
        "changes", [{"consistency": 0.5}, {"label_smoothing": 0.1}, {"averaging": 0.9}, {"validation": 0.0}]
    )
    def test_every_option_has_an_effect(self, model: EmbeddingClassifier, changes: dict[str, Any]) -> None:
        tokens, labels = texts(80)
        base = EmbeddingClassifier(bits=8, networks=1, settings=replace(TINY, **changes))
        fitted = base.fit(tokens, labels, noise=NOISE)
        plain = EmbeddingClassifier(bits=8, networks=1, settings=TINY).fit(tokens, labels, noise=NOISE)
        assert fitted.fingerprint() != plain.fingerprint()

    def test_it_stops_when_the_vote_no_longer_improves(self) -> None:
        tokens, labels = texts(80)
        settings = replace(TINY, steps=3000, evaluations=300, patience=2)
        base = EmbeddingClassifier(bits=8, settings=settings).fit(tokens, labels, noise=NOISE)
        assert base.training_["networks"][0]["steps"] < 3000

    @pytest.mark.parametrize(("averaging", "scale"), [(0.0, "table"), (0.9, "row")])
    def test_an_interrupted_training_goes_on(self, averaging: float, scale: str, tmp_path: Path) -> None:
        tokens, labels = texts(80)
        shape = replace(TINY, averaging=averaging, embedding_scale=scale)
        base = EmbeddingClassifier(bits=8, networks=1, settings=shape)
        whole = base.unfitted().fit(tokens, labels, noise=NOISE)
        steps = []

        def interrupt(done: int, total: int) -> None:
            steps.append(done)
            if done == 80 and steps.count(80) == 1:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            base.fit(tokens, labels, noise=NOISE, checkpoint=tmp_path, progress=interrupt)
        resumed = base.fit(tokens, labels, noise=NOISE, checkpoint=tmp_path, progress=interrupt)
        assert steps == [*range(1, 81), *range(61, 91)]
        assert resumed.fingerprint() == whole.fingerprint()
        assert resumed.training_ == whole.training_
        with pytest.raises(ValueError, match=r"network0\.safetensors: belongs to another training: remove it"):
            base.fit(tokens, labels, noise=NOISE, seed=1, checkpoint=tmp_path)
        path = tmp_path / "network0.safetensors"
        for content in (b"", path.read_bytes()[:-3], b"x" * 100, b"\xff" * 100, b"\2\0\0\0\0\0\0\0\xff\xfe"):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"not a checkpoint that training can go on from: .*: remove it"):
                base.fit(tokens, labels, noise=NOISE, checkpoint=tmp_path)

    @pytest.mark.parametrize("networks", [1, 2])
    def test_a_time_limit_ends_with_a_low_rate_and_the_best_weights(
        self, networks: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokens, labels = texts(80)
        rates = recorded_rates(monkeypatch)
        monkeypatch.setattr(embedding_training, "monotonic", Clock(1.0))
        settings = replace(TINY, steps=400, evaluations=4)
        base = EmbeddingClassifier(bits=8, networks=networks, settings=settings)
        base.fit(tokens, labels, noise=NOISE, max_minutes=networks * 100 / 60)
        for number, record in enumerate(base.training_["networks"]):
            assert record["stopped_by_time"]
            assert record["planned_steps"] == 400
            assert record["seconds"] == pytest.approx(100, abs=4)  # the clock moves by a second a call
            assert 90 < record["steps"] < 100  # a call a step, and one an evaluation
            steps = [row["step"] for row in record["history"]]
            assert len(steps) == 4  # spread over the time, not over the steps that there was no time for
            assert steps[-1] == record["steps"]
            assert all(20 < later - earlier < 30 for earlier, later in zip([0, *steps], steps, strict=False))
            own = rates[number * len(rates) // networks :][: record["steps"]]
            assert max(own) == pytest.approx(settings.learning_rate, rel=0.05)
            assert own[-1] < 0.01 * max(own)
            assert record["history"][-1]["vote_share"] > 0.8

    def test_with_enough_time_a_limit_changes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tokens, labels = texts(80)
        plain = EmbeddingClassifier(bits=8, networks=1, settings=TINY).fit(tokens, labels, noise=NOISE)
        monkeypatch.setattr(embedding_training, "monotonic", Clock(1.0))
        limited = plain.unfitted().fit(tokens, labels, noise=NOISE, max_minutes=3)
        assert limited.fingerprint() == plain.fingerprint()
        assert limited.training_["networks"][0]["stopped_by_time"] is False
        assert limited.training_["networks"][0]["history"] == plain.training_["networks"][0]["history"]

    def test_the_shortest_time_gives_a_network_of_one_step(self) -> None:
        tokens, labels = texts(80)
        base = EmbeddingClassifier(bits=8, networks=2, settings=TINY)
        base.fit(tokens, labels, noise=NOISE, max_minutes=1e-9)
        assert [record["steps"] for record in base.training_["networks"]] == [1, 1]
        assert len(base.votes([Request(base.prepare("input", tokens[0], Words()), np.ones((3, 12), bool))])[0]) == 3

    @pytest.mark.parametrize("place", [70, 95, 150])  # in the first network, and in the second
    def test_an_interrupted_training_with_a_limit_goes_on(
        self, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The time of all sessions counts: what was lost with the interruption, and the second start, do not."""
        tokens, labels = texts(80)
        base = EmbeddingClassifier(bits=8, networks=2, settings=replace(TINY, steps=400, evaluations=4))
        clock = Clock(1.0)
        monkeypatch.setattr(embedding_training, "monotonic", clock)
        whole = base.unfitted().fit(tokens, labels, noise=NOISE, max_minutes=200 / 60)
        done_before: list[int] = []

        def interrupt(done: int, total: int) -> None:
            done_before.append(done)
            if len(done_before) == place:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            base.fit(tokens, labels, noise=NOISE, checkpoint=tmp_path, max_minutes=200 / 60, progress=interrupt)
        clock.now += 10_000  # until somebody starts it again
        resumed = base.unfitted().fit(tokens, labels, noise=NOISE, checkpoint=tmp_path, max_minutes=200 / 60)
        assert resumed.fingerprint() == whole.fingerprint()
        assert resumed.training_ == whole.training_
        with pytest.raises(ValueError, match=r"network0\.safetensors: belongs to another training: remove it"):
            base.fit(tokens, labels, noise=NOISE, checkpoint=tmp_path, max_minutes=100)

    def test_balanced_classes_weigh_the_same(self) -> None:
        tokens, labels = texts(200)
        rare = [number for number in range(200) if labels[number] == "neg" or number % 20 == 1]
        tokens, labels = [tokens[number] for number in rare], [labels[number] for number in rare]
        held = texts(80, seed=5)
        noise = ad.Deletion(ad.LengthRate(0.0, 2))
        recalls = []
        for weight in (None, "balanced"):
            base = EmbeddingClassifier(bits=8, networks=1, settings=replace(TINY, steps=60))
            base.fit(tokens, labels, noise=noise, class_weight=weight, validation=held)
            votes = [
                scores(base, row, NOISE.sample(12, 50, np.random.default_rng(0))).argmax(axis=1) for row in held[0]
            ]
            recalls.append(np.mean([row.mean() for row, label in zip(votes, held[1], strict=True) if label == "pos"]))
            history = base.training_["networks"][0]["history"]
            assert [("balanced_vote_share" in row) for row in history] == [weight is not None] * len(history)
        assert recalls[1] > recalls[0] + 0.1
        with pytest.raises(ValueError, match="class_weight must be one of 'balanced', got 'equal'"):
            base.fit(tokens, labels, class_weight="equal")
        with pytest.raises(ValueError, match="max_minutes must be a positive number, got 0"):
            base.fit(tokens, labels, max_minutes=0)

    def test_masking(self) -> None:
        tokens, labels = texts(80)
        base = EmbeddingClassifier(bits=8, settings=TINY).fit(tokens, labels, noise=ad.Masking(0.6))
        kept = ad.Masking(0.6).sample(12, 50, np.random.default_rng(0))
        votes = [scores(base, row, kept, masking=True).argmax(axis=1).mean() for row in tokens[:2]]
        assert votes[0] < 0.2 < 0.8 < votes[1]
        assert base.networks_[0].mask.any()

    def test_bad_arguments(self) -> None:
        tokens, labels = texts(4)
        with pytest.raises(ValueError, match="precision must be one of 'int8', 'float32', got 'int4'"):
            EmbeddingClassifier(precision="int4")
        with pytest.raises(ValueError, match="noise must be None or a noise such as"):
            EmbeddingClassifier().fit(tokens, labels, noise="much")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="tokens and labels must be of the same length, got 3 and 4"):
            EmbeddingClassifier().fit(tokens[:3], labels)
        with pytest.raises(ValueError, match="EmbeddingClassifier must be fitted before it is asked"):
            EmbeddingClassifier().prepare("input", tokens[0], Words())
        with pytest.raises(ValueError, match="dropout must be a probability"):
            EmbeddingSettings(dropout=2.0)
        with pytest.raises(ValueError, match="embedding_scale must be one of 'table', 'row', got 'all'"):
            EmbeddingSettings(embedding_scale="all")

    @pytest.mark.parametrize(("scale", "least", "most"), [("table", 0.0999, 0.1001), ("row", 1.0, 3.2)])
    def test_rare_rows_move_by_their_gradients(self, scale: str, least: float, most: float) -> None:
        """A row that is seen once, with a tenth of the gradient: Adam moves it further than a frequent one."""
        torch = pytest.importorskip("torch")
        rows = torch.zeros(3, 1)
        optimiser = RowOptimiser(rows, scale)
        for _ in range(200):
            optimiser.step(torch.tensor([0]), torch.tensor([[1.0]]), 0.01)
        earlier = float(rows[0])
        optimiser.step(torch.tensor([0, 1]), torch.tensor([[1.0], [0.1]]), 0.01)
        assert least <= float(rows[1]) / (float(rows[0]) - earlier) <= most
        assert float(rows[0]) < 0 == float(rows[2])

    def test_gradients_are_those_of_torch(self) -> None:
        torch = pytest.importorskip("torch")
        table = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
        members, counts = np.array([1, 1, 5, 0, 6]), np.array([2, 0, 3])
        weights = torch.randn(3, 3, dtype=torch.float64)
        (bag_sum(table, members, counts) * weights).sum().backward()
        computed, table.grad = table.grad, None
        sums = [table[members[:2]].sum(0), table[:0].sum(0), table[members[2:]].sum(0)]
        (torch.stack(sums) * weights).sum().backward()
        assert torch.allclose(computed, table.grad)


class TestPretrained:
    @pytest.fixture
    def vectors(self, tmp_path: Path) -> StaticVectors:
        listed = [*GOOD, *BAD, "unused"]
        values = np.array([[1.0, 0.5]] * 4 + [[-1.0, 0.5]] * 4 + [[0.0, 0.0]])
        write_vectors(tmp_path / "vectors.safetensors", listed, values)
        return StaticVectors(tmp_path / "vectors.safetensors")

    def test_they_are_learnt_from_and_stored(self, vectors: StaticVectors, tmp_path: Path) -> None:
        tokens, labels = texts(80)
        base = EmbeddingClassifier(encoder=vectors, bits=8, settings=TINY).fit(tokens, labels, noise=NOISE)
        assert base._fitted().features.words == sorted([*GOOD, *BAD])
        assert base.networks_[0].pretrained.any()
        base.save(tmp_path / "model")
        vectors.path.unlink()  # the model holds what it needs
        loaded = EmbeddingClassifier.load(tmp_path / "model")
        kept = RNG.random((50, 12)) < 0.4
        assert scores(loaded, tokens[0], kept).tolist() == scores(base, tokens[0], kept).tolist()

    @pytest.mark.parametrize(
        ("words", "values", "message"),
        [
            (["a", "a"], np.zeros((2, 3)), "must hold a vector for each of its 2 different words"),
            (["a"], np.zeros((2, 3)), "must hold a vector for each of its 1 different words"),
            (["a"], np.full((1, 3), np.nan), "must hold finite vectors"),
        ],
    )
    def test_damaged_files(self, words: list[str], values: Any, message: str, tmp_path: Path) -> None:
        write_vectors(tmp_path / "v.safetensors", words, values)
        with pytest.raises(ValueError, match=message):
            StaticVectors(tmp_path / "v.safetensors").encode(["a"])

    def test_words_of_a_transformer(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each word is encoded as if it were alone; what is on disk is not computed again."""
        from tests.classifiers.test_transformers import fixed, tiny, torch

        tokenizer = fixed("bert")
        tokenizer.save_pretrained(tmp_path / "encoder")
        model = tiny("bert", tokenizer).base_model
        model.save_pretrained(tmp_path / "encoder")
        encoder = TransformerEncoder(tmp_path / "encoder", cache=tmp_path / "cache")
        words = ["the", "film", "xyz" * 20, "q", "é"]
        listed, vectors = encoder.encode(words)
        assert listed == words
        with torch.inference_mode():
            for word, vector in zip(words, vectors, strict=True):
                ids = torch.tensor([tokenizer(word, truncation=True, max_length=24)["input_ids"]])
                expected = model(input_ids=ids).last_hidden_state[0].mean(dim=0)
                assert np.allclose(vector, expected.numpy(), atol=1e-2)
        again = TransformerEncoder(tmp_path / "encoder", cache=tmp_path / "cache")
        monkeypatch.setattr(again, "_encode", lambda words: pytest.fail("encoded again"))
        listed, stored = again.encode(words[::-1])
        assert listed == words[::-1]
        assert stored[::-1].tolist() == vectors.tolist()
        assert again.description() == encoder.description()

    def test_the_hash_of_a_transformer_covers_all_that_vectors_depend_on(self, tmp_path: Path) -> None:
        """Otherwise the cache would give the vectors of another encoder with the same weights and vocabulary."""
        from tests.classifiers.test_transformers import fixed, tiny

        folder = tmp_path / "encoder"
        tokenizer = fixed("bert")
        tokenizer.save_pretrained(folder)
        tiny("bert", tokenizer).base_model.save_pretrained(folder)
        hashes = [TransformerEncoder(folder).encoder_hash()]
        used = TransformerEncoder(folder)
        used.encode(["film"])
        assert used.encoder_hash() == hashes[0]
        moved = folder.rename(tmp_path / "moved")
        assert TransformerEncoder(moved).encoder_hash() == hashes[0]
        config = json.loads((moved / "config.json").read_text(encoding="utf-8"))
        changed = config | {"hidden_act": "relu" if config["hidden_act"] != "relu" else "gelu"}
        (moved / "config.json").write_text(json.dumps(changed), encoding="utf-8")
        hashes.append(TransformerEncoder(moved).encoder_hash())
        rules = json.loads((moved / "tokenizer.json").read_text(encoding="utf-8"))
        rules["normalizer"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
        (moved / "tokenizer.json").write_text(json.dumps(rules), encoding="utf-8")
        hashes.append(TransformerEncoder(moved).encoder_hash())
        assert len(set(hashes)) == 3

    def test_no_vectors_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"v\.safetensors cannot be read"):
            StaticVectors(tmp_path / "v.safetensors").encode(["a"])
        (tmp_path / "v.safetensors").write_bytes(b"x" * 100)
        with pytest.raises(ValueError, match=r"v\.safetensors must be a safetensors file"):
            StaticVectors(tmp_path / "v.safetensors").encode(["a"])


class TestFiles:
    @pytest.mark.parametrize("precision", ["int8", "float32"])
    def test_a_loaded_model_votes_the_same(self, precision: str, tmp_path: Path) -> None:
        base = random_model(precision, networks=2)
        base.save(tmp_path)
        loaded = classifier_class("embedding").load(tmp_path)
        assert loaded.fingerprint() == base.fingerprint()
        assert loaded.classes_ == base.classes_
        kept = RNG.random((100, 80)) < 0.1
        assert scores(loaded, words(80), kept).tolist() == scores(base, words(80), kept).tolist()  # type: ignore[arg-type]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["embedding.json", "embedding.safetensors"]

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("version", 2, "must describe an embedding model of adaptdel, version 1"),
            ("precision", "int4", "is damaged: precision must be one of 'int8', 'float32', got 'int4'"),
            ("on_unknown", "guess", "is damaged: on_unknown must be one of"),
            ("bits", 60, "is damaged: bits must be a whole number of at least 1 and at most 24, got 60"),
            ("bits", 7, r"must hold 0\.rows as int16 of shape \(131, any\), got int16 of shape \(67, 5\)"),
            ("vocabulary", ["a", "a", "b"], "is damaged: vocabulary must not hold anything twice"),
            ("vocabulary", None, "is damaged: vocabulary must be a list"),
            ("vocabulary", ["film", "good", "x"], "does not belong to the weights beside it"),
            ("words", ["good", 1.5], r"is damaged: no token is written as 1\.5"),
            ("ngrams", [0], "is damaged: ngrams must be a whole number of at least 1"),
            ("classes", [1, 1, 2], "is damaged: classes must be two or more different labels"),
            ("layers", [99], "is damaged: layers must be a whole number of at least 1 and at most 16, got 99"),
            ("layers", [1], r"must hold 0\.layer0\.weights as int8 of shape \(13, 3\)"),
            ("layers", [2, 2], r"must hold 1\.rows as int16 of shape \(67, any\), got none"),
            ("training", [], "is damaged: training must be a dictionary"),
            ("lowercase", 1, "is damaged: ngrams must be a list and lowercase true or false"),
        ],
    )
    def test_damaged_descriptions(self, field: str, value: Any, message: str, tmp_path: Path) -> None:
        random_model().save(tmp_path)
        path = tmp_path / "embedding.json"
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), field: value}), encoding="utf-8")
        with pytest.raises(ValueError, match=message) as raised:
            EmbeddingClassifier.load(tmp_path)
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("0.rows", np.zeros((67, 5), np.int32), r"must hold 0\.rows as int16 of shape \(67, any\), got int32"),
            ("0.rows", np.zeros((67, 0), np.int16), r"must hold 0\.rows as int16 of shape \(67, any\)"),
            ("0.mask", np.full(6, -1, np.int8), r"must hold 0\.mask between 0 and 127"),
            ("0.word.weights", np.full((5, 6), -128, np.int8), r"must hold 0\.word\.weights between -127 and 127"),
            ("0.word.scale", np.full(6, np.nan, np.float32), r"must hold 0\.word\.scale between -1e\+12 and 1e\+12"),
            ("0.pool_shift", np.zeros(13, np.float64), r"must hold 0\.pool_shift as float32 of shape \(13\)"),
            ("0.layer1.shift", np.ones(3, np.float32), "does not belong to the weights beside it"),
        ],
    )
    def test_damaged_tensors(self, name: str, value: Any, message: str, tmp_path: Path) -> None:
        random_model().save(tmp_path)
        path = tmp_path / "embedding.safetensors"
        save_file({**load_file(path), name: value}, path)
        with pytest.raises(ValueError, match=message):
            EmbeddingClassifier.load(tmp_path)

    def test_too_many_inputs_for_exact_sums(self, tmp_path: Path) -> None:
        random_model().save(tmp_path)
        path = tmp_path / "embedding.safetensors"
        wide = {"0.layer0.weights": np.ones((13, 2000), np.int8), "0.layer1.weights": np.ones((2000, 3), np.int8)}
        scales = {f"0.layer0.{name}": np.ones(2000, np.float32) for name in ("scale", "shift")}
        save_file({**load_file(path), **wide, **scales}, path)
        with pytest.raises(ValueError, match=r"must hold 0\.layer1 of at most 1040 inputs, got 2000"):
            EmbeddingClassifier.load(tmp_path)

    def test_missing_and_cut_files(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"embedding\.json cannot be read: no such file"):
            EmbeddingClassifier.load(tmp_path)
        random_model().save(tmp_path)
        path = tmp_path / "embedding.safetensors"
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(ValueError, match=r"embedding\.safetensors must be a safetensors file"):
            EmbeddingClassifier.load(tmp_path)
        path.unlink()
        with pytest.raises(ValueError, match=r"embedding\.safetensors cannot be read"):
            EmbeddingClassifier.load(tmp_path)

    def test_the_fingerprint_covers_what_votes_depend_on(self) -> None:
        prints = {
            random_model().fingerprint(),
            random_model("float32").fingerprint(),
            random_model(networks=2).fingerprint(),
            random_model(vocabulary=("film", "bad", 7)).fingerprint(),
        }
        assert len(prints) == 4
        assert random_model().fingerprint() == random_model().fingerprint()


class TestSmoothed:
    def test_a_smoothed_model_is_fitted_saved_and_certified(self, tmp_path: Path) -> None:
        tokens, labels = texts(80)
        inputs = [" ".join(map(str, row)) for row in tokens]
        base = EmbeddingClassifier(bits=8, settings=TINY)
        smoothed = ad.SmoothedClassifier(base, NOISE, n_select=50, n_estimate=200, progress=False).fit(inputs, labels)
        certificates = smoothed.certify(inputs[:10])
        assert [certificate.label for certificate in certificates] == labels[:10]
        assert max(certificate.radius for certificate in certificates) >= 1
        smoothed.save(tmp_path / "model")
        assert ad.SmoothedClassifier.load(tmp_path / "model").certify(inputs[:10]) == certificates

    @pytest.mark.parametrize("unit", ["byte", "char", "chunk:3"])
    def test_other_units(self, unit: str, tmp_path: Path) -> None:
        tokens, labels = texts(40)
        inputs: list[Any] = ["".join(map(str, row)) for row in tokens]
        inputs = [text.encode() for text in inputs] if unit != "char" else inputs
        base = EmbeddingClassifier(bits=8, settings=replace(TINY, steps=10))
        smoothed = ad.SmoothedClassifier(
            base, ad.Deletion(ad.FixedRate(0.5)), n_select=20, n_estimate=50, unit=unit, progress=False
        ).fit(inputs, labels)
        certificates = smoothed.certify(inputs[:3])
        smoothed.save(tmp_path / "model")
        assert ad.SmoothedClassifier.load(tmp_path / "model").certify(inputs[:3]) == certificates

    def test_bytes_and_characters(self) -> None:
        base = random_model()
        for tokens, unit in (((7, 255, 0, 7), Bytes()), (tuple("good"), Characters())):
            assert scores(base, tokens, np.ones((1, 4)), unit).shape == (1, 3)

    def test_votes_need_no_torch(self, tmp_path: Path) -> None:
        random_model().save(tmp_path)
        code = (
            "import sys\n"
            "class Blocked:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.split('.')[0] in ('torch', 'transformers'): raise ImportError(name)\n"
            "sys.meta_path.insert(0, Blocked())\n"
            "from adaptdel.classifiers.embedding import EmbeddingClassifier\n"
            "import adaptdel as ad\n"
            f"base = EmbeddingClassifier.load({str(tmp_path)!r})\n"
            "noise = ad.Deletion(ad.FixedRate(0.5))\n"
            "print(ad.SmoothedClassifier(base, noise, n_estimate=100).certify(['a good film'])[0].label in (0, 1, 2))\n"
            "try: base.unfitted().fit([('a',), ('b',)], [0, 1])\n"
            "except ImportError as error: print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == [
            "True",
            "training an EmbeddingClassifier needs torch: pip install 'adaptdel[embedding]'",
        ]
