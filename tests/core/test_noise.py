from __future__ import annotations

import json
import math
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from adaptdel import (
    Certificate,
    Deletion,
    FixedRate,
    LengthRate,
    Masking,
    NoNoise,
    SmoothedClassifier,
    certified_frontier,
    certified_radius,
    noise_from_dict,
    register_noise,
    register_rate,
    rigorous_radius,
)
from adaptdel.certification.certificate import digest
from adaptdel.certification.verify import verify
from adaptdel.classifiers import LinearClassifier
from adaptdel.core.checks import BoolArray, FloatArray, IntArray
from adaptdel.core.noise import MANY_CHOICES, ExactOverlap, Noise, Overlap, RandomDeletion, _words, draw_at_least
from adaptdel.core.rates import DENOMINATOR, Rate
from adaptdel.core.threat import EVERY_SET
from tests.exact import round_down, round_up

NOISES: list[Noise] = [
    Deletion(FixedRate(0.9)),
    Deletion(LengthRate(0.5, 3)),
    Deletion(FixedRate(1.0)),
    RandomDeletion(0.7, 0.99),
    Masking(0.8),
    Masking(0.0),
    Masking(1.0),
    NoNoise(),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


@pytest.mark.parametrize("noise", NOISES, ids=repr)
@pytest.mark.parametrize("length", [0, 1, 7, 100])
@pytest.mark.parametrize("max_bytes", [1, 100, 5000])
def test_chunks_do_not_change_the_samples(noise: Noise, length: int, max_bytes: int) -> None:
    whole = noise.sample(length, 50, rng())
    assert whole.shape == (50, length)
    assert whole.dtype == np.bool_
    chunks = list(noise.chunks(length, 50, rng(), max_bytes=max_bytes))
    assert np.array_equal(np.concatenate(chunks), whole)
    other = rng()
    assert np.array_equal(np.concatenate([noise.sample(length, 20, other), noise.sample(length, 30, other)]), whole)


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_noises_survive_json_and_repr(noise: Noise) -> None:
    assert noise_from_dict(json.loads(json.dumps(noise.to_dict()))) == noise
    assert eval(repr(noise)) == noise


@pytest.mark.parametrize("length", [1, 8, 101, 700])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 0.9961, 1.0])
def test_a_token_is_deleted_iff_its_draw_is_below_the_threshold(p: float, length: int) -> None:
    """The draw is a byte and, where that equals the threshold's first byte, three more: assembled here one by one."""
    rate = FixedRate(p)
    threshold, width = rate.threshold(length), -(-length // 8)
    if p == 1:
        assert not Deletion(rate).sample(length, 40, rng(3)).any()
        return
    spare = (math.ceil(length / 256 + 4 * math.sqrt(length / 256)) + 5) // 2
    words = rng(3).integers(0, 2**64, size=(40, width + spare), dtype=np.uint64)
    expected = []
    for row in words.tolist():
        lead = [word >> 8 * i & 255 for word in row[:width] for i in range(8)][:length]
        more = iter([half >> 8 for word in row[width:] for half in (word & 2**32 - 1, word >> 32)])
        expected.append([(b << 24 | (next(more) if b == threshold >> 24 else 0)) >= threshold for b in lead])
    assert Deletion(rate).sample(length, 40, rng(3)).tolist() == expected


def test_a_row_whose_spare_draws_run_out_is_still_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too rare to wait for: take the spare draws away, and see that rates stay exact and rows independent of chunks."""
    monkeypatch.setattr("adaptdel.core.noise.ceil", lambda _: -5)
    noise = Deletion(FixedRate(0.9))
    whole = noise.sample(100, 300, rng())
    assert np.array_equal(np.concatenate(list(noise.chunks(100, 300, rng(), max_bytes=2000))), whole)
    kept = int(noise.sample(1000, 500, rng(2)).sum())
    assert stats.binomtest(kept, 500_000, 0.1).pvalue > 1e-6


@pytest.mark.parametrize("length", [0, 1, 8, 100, 333])
def test_rows_do_not_depend_on_the_rows_that_are_drawn_together(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    noise = Deletion(FixedRate(0.9))
    together = noise.sample(length, 500, rng(7))
    for size in (1, 1000, 2**30):
        monkeypatch.setattr("adaptdel.core.noise._BLOCK_BYTES", size)
        assert np.array_equal(noise.sample(length, 500, rng(7)), together)


def test_raw_draws_are_those_of_the_generator() -> None:
    ours, theirs = (np.random.Generator(np.random.Philox(key=9)) for _ in range(2))
    for shape in ((3, 5), (1, 1), (0, 4), (7, 2)):
        assert np.array_equal(_words(ours, shape), theirs.integers(0, 2**64, size=shape, dtype=np.uint64))


def test_a_higher_rate_keeps_a_subset() -> None:
    """The same draws at another rate: common random numbers."""
    more, fewer = Deletion(FixedRate(0.5)).sample(50, 50, rng()), Deletion(FixedRate(0.9)).sample(50, 50, rng())
    assert (more | ~fewer).all()
    assert more.sum() > fewer.sum()


@pytest.mark.parametrize("rate", [0.1, 0.9, 0.999])
def test_the_sampled_rate_is_the_certified_one(rate: float) -> None:
    kept = int(Deletion(FixedRate(rate)).sample(1000, 1000, rng(1)).sum())
    assert stats.binomtest(kept, 10**6, 1 - FixedRate(rate)(1000)).pvalue > 1e-6


@pytest.mark.parametrize(("length", "fraction", "masks"), [(10, 0.9, 9), (5, 0.5, 2), (7, 0.5, 4), (0, 0.9, 0)])
def test_masking_keeps_an_exact_number(length: int, fraction: float, masks: int) -> None:
    noise = Masking(fraction)
    assert noise.masks(length) == masks
    assert (noise.sample(length, 100, rng()).sum(axis=1) == length - masks).all()


def test_every_choice_of_masks_is_as_likely() -> None:
    kept = Masking(0.5).sample(6, 40_000, rng(5))
    _, counts = np.unique(kept @ (1 << np.arange(6)), return_counts=True)
    assert len(counts) == 20
    assert stats.chisquare(counts).pvalue > 1e-6


def test_a_tied_row_is_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ties are too rare to wait for: draw keys of one bit, and see that rows stay exact and independent of chunks."""
    monkeypatch.setattr(
        "adaptdel.core.masking.draws", lambda gen, shape: gen.integers(0, 4, size=shape, dtype=np.uint32)
    )
    noise = Masking(0.5)
    whole = noise.sample(4, 300, rng())
    assert (whole.sum(axis=1) == 2).all()
    assert np.array_equal(np.concatenate(list(noise.chunks(4, 300, rng(), max_bytes=16))), whole)
    _, counts = np.unique(noise.sample(4, 6000, rng(2)) @ (1 << np.arange(4)), return_counts=True)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_a_million_tokens_need_little_memory() -> None:
    tracemalloc.start()
    kept = 0
    for chunk in Deletion(FixedRate(0.999)).chunks(10**6, 12, rng()):
        kept += int(chunk.sum())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 11_000 < kept < 13_000
    assert peak < 64e6  # 5000 samples would need no more


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Masking(1.2), "fraction must be a probability in [0, 1], got 1.2"),
        (lambda: Deletion(0.9), "rate must be a Rate such as FixedRate(0.9), got 0.9"),  # type: ignore[arg-type]
        (lambda: NoNoise().sample(-1, 2, rng()), "length must be an integer of at least 0"),
        (lambda: noise_from_dict({"kind": "loud"}), "the noise 'loud' is not registered, only deletion"),
    ],
)
def test_bad_noise(make: object, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value).startswith(sentence)


def test_random_rates_cover_their_range_and_are_not_certified() -> None:
    shares = RandomDeletion(0.7, 0.99).sample(2000, 2000, rng()).mean(axis=1)
    assert stats.kstest(shares, "uniform", args=(0.01, 0.29)).pvalue > 1e-3
    with pytest.raises(ValueError, match=r"^noise must have a rate for every length to certify, got RandomDeletion"):
        certified_radius(0.9, length=5, noise=RandomDeletion())


@pytest.mark.parametrize("noise", [Deletion(FixedRate(0.9)), Deletion(LengthRate(0.5, 3)), Masking(0.8)], ids=repr)
def test_the_exact_overlap_is_that_of_the_doubles(noise: Noise) -> None:
    """Also in rational numbers: the formula is written once for balls and fractions."""
    for length, other, common in ((9, 9, 7), (9, 9, 9), (9, 11, 8), (9, 6, 5), (0, 0, 0)):
        if noise.masks_tokens and other != length:
            continue
        double = noise.overlap(length, np.array([other]), np.array([common]))
        exact = noise.exact_overlap(Fraction, length, other, common)
        assert double.inside[0] == pytest.approx(float(exact.inside), rel=1e-14)
        assert double.other_inside[0] == pytest.approx(float(exact.other_inside), rel=1e-14)
        assert (exact.psi == exact.other_psi) == (double.psi[0] == double.other_psi[0])


# A noise and a rate that are defined outside the package.


@register_noise("scattered_masking")
@dataclass(frozen=True)
class ScatteredMasking(Noise):
    """Mask each token independently. Certified by p − 1 + ψ^r > 1/2: with probability ψ^r all r changes are masked."""

    immutable = True
    masks_tokens = True
    certified_ops = ("sub",)
    p: float

    def threshold(self) -> int:
        return round(self.p * DENOMINATOR)

    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        return draw_at_least(rng, (size, length), self.threshold())

    def share_removed(self, length: int) -> float:
        return self.threshold() / DENOMINATOR

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        hidden = np.power(self.share_removed(length), (length - common).astype(np.float64))
        return Overlap.alike(hidden, hidden, common)

    def exact_overlap(self, number: Callable[[int], Any], length: int, other_length: int, common: int) -> ExactOverlap:
        hidden = (number(self.threshold()) / DENOMINATOR) ** (length - common)
        return ExactOverlap(hidden, hidden, number(0), number(0))


@register_rate("rooted")
@dataclass(frozen=True)
class RootRate(Rate):
    """A rate that rises with the square root of the length."""

    scale: float

    def real(self, lengths: FloatArray) -> FloatArray:
        return np.asarray(1 - self.scale / np.sqrt(np.maximum(lengths, 1)))


OWN: list[Noise] = [ScatteredMasking(0.9), Deletion(RootRate(0.6))]


@pytest.mark.parametrize("noise", OWN, ids=repr)
def test_a_noise_of_your_own_is_certified_verified_and_saved_with_a_model(noise: Noise, tmp_path: Path) -> None:
    draw = random.Random(0)
    texts = [" ".join(draw.choices(["good" if place % 2 else "bad", "film"], k=30)) for place in range(40)]
    labels = [place % 2 for place in range(40)]
    base = LinearClassifier().fit([tuple(text.split()) for text in texts], labels, noise=noise, seed=0)
    model = SmoothedClassifier(base, noise, n_select=100, n_estimate=500, progress=False)
    certificates = model.certify([*texts[:4], "good film"])
    assert max(certificate.radius for certificate in certificates) > 0
    for certificate in certificates:
        assert certificate.exact is None or not noise.masks_tokens  # it does not say how to enumerate
        assert Certificate.from_json(certificate.to_json()) == certificate
        assert verify(certificate.to_dict()) == []
        false = certificate.to_dict()
        false["derived"] = {**false["derived"], "radius": certificate.radius + 1}
        false["digest"] = digest(false)
        assert any("does not follow from the votes" in problem for problem in verify(false))
    model.save(tmp_path / "model")
    assert SmoothedClassifier.load(tmp_path / "model").certify(texts[:4]) == certificates[:4]


@pytest.mark.parametrize("seed", range(20))
def test_no_word_within_the_radius_has_another_class(seed: int) -> None:
    """By enumeration: the exact probabilities of a random base classifier at every word with up to r substitutions."""
    draw = random.Random(seed)
    noise, length, letters = ScatteredMasking(draw.choice([0.5, 0.7, 0.9])), 4, 3
    psi = Fraction(noise.threshold(), DENOMINATOR)
    answers = {copy: int(draw.random() < 0.1) for copy in product([None, *range(letters)], repeat=length)}

    def probability(word: tuple[int, ...]) -> Fraction:
        total = Fraction(0)
        for kept in product([False, True], repeat=length):
            copy = tuple(token if keep else None for token, keep in zip(word, kept, strict=True))
            if answers[copy]:
                total += psi ** (length - sum(kept)) * (1 - psi) ** sum(kept)
        return total

    word = tuple(draw.randrange(letters) for _ in range(length))
    p = probability(word)
    label = int(p > Fraction(1, 2))
    p1 = round_down(p if label else 1 - p)
    radius = certified_radius(p1, length=length, noise=noise, ops=["sub"])
    for other in product(range(letters), repeat=length):
        if sum(a != b for a, b in zip(word, other, strict=True)) <= radius:
            assert int(probability(other) > Fraction(1, 2)) == label
    assert round_up(p) >= p


class Unverifiable(ScatteredMasking):
    """Without exact numbers."""

    exact_overlap = Noise.exact_overlap


def test_a_noise_without_exact_numbers_is_certified_but_not_verified() -> None:
    noise = Unverifiable(0.9)
    assert certified_radius(0.99, length=50, noise=noise, ops=["sub"]) > 0
    sentence = "^noise must define exact_overlap to be checked in ball arithmetic, which Unverifiable does not$"
    with pytest.raises(ValueError, match=sentence):
        rigorous_radius(0.99, length=50, noise=noise, ops=["sub"])
    with pytest.raises(ValueError, match=r"^noise must define all_choices and choice_weights to be enumerated, got"):
        noise.all_choices(3)


class CheckedDeletion(Deletion):
    """Deletion that does not promise where its bound is worst: every common subsequence is checked."""

    shortest_is_worst = False


@pytest.mark.parametrize("ops", EVERY_SET, ids="+".join)
def test_every_neighbour_is_checked_unless_the_noise_promises_otherwise(ops: tuple[str, ...]) -> None:
    rate = LengthRate(0.6, 3)
    for length in (0, 1, 5, 12):
        for p1, p2 in ((0.8, None), (0.99, None), (1.0, None), (0.7, 0.1), (0.9, 0.02)):
            given: Any = {"length": length, "ops": ops}
            checked, promised = CheckedDeletion(rate), Deletion(rate)
            expected = certified_radius(p1, p2, noise=promised, **given)
            assert certified_radius(p1, p2, noise=checked, **given) == expected
            assert rigorous_radius(p1, p2, noise=checked, **given) == expected
            assert certified_frontier(p1, p2, noise=checked, **given) == certified_frontier(
                p1, p2, noise=promised, **given
            )
            batch = certified_radius(np.full(9, p1), p2, noise=checked, **given)
            assert np.asarray(batch).tolist() == [expected] * 9


class Blocks(Deletion):
    """Deletes everything or nothing: what is true of `Deletion` is not true of it."""

    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        return np.repeat(super().draw_rows(1, size, rng), length, axis=1)

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        overlap = super().overlap(length, other_length, common)
        return replace(overlap, inside=overlap.inside * 0.0)


class Named(Deletion):
    """The same distribution as its parent."""


class Enumerated(Blocks):
    """Says itself what is true of it."""

    shortest_is_worst = True

    def choices(self, length: int) -> int:
        return 2


class Drawn:
    """A distribution that a class takes from elsewhere."""

    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        return np.repeat(rng.random((size, 1)) < 0.5, length, axis=1)


@dataclass(frozen=True)
class MixedIn(Drawn, Deletion):
    """Deletion but for the draws; it says itself that the overlap is right."""

    overlap = Deletion.overlap


def test_other_draws_do_not_inherit_the_overlap() -> None:
    """A certificate from it would be that of another distribution."""
    with pytest.raises(TypeError, match=r"^Silent draws tokens in its own way, and must define their overlap$"):
        type("Silent", (Drawn, Deletion), {})


@pytest.mark.parametrize("kind", [Blocks, MixedIn])
def test_another_distribution_does_not_inherit_what_is_proved_for_its_parent(kind: type[Deletion]) -> None:
    rate = FixedRate(0.5)
    noise = kind(rate)
    promises = ("has_paper_bound", "shortest_is_worst", "calibratable")
    assert [getattr(noise, name) for name in promises] == [False, False, False]
    assert noise.used_bound("paper") == "tight"
    assert noise.choices(3) > MANY_CHOICES
    for call in (
        lambda: noise.all_choices(3),
        lambda: noise.choice_weights(3),
        lambda: noise.exact_overlap(int, 3, 3, 2),
    ):
        with pytest.raises(ValueError, match="must define"):
            call()
    model = SmoothedClassifier(lambda copies: [0] * len(copies), noise, classes=[0, 1], n_estimate=100)
    assert model.certify(["a b c"])[0].exact is None
    same = Named(rate)
    assert [getattr(same, name) for name in promises] == [True, True, True]
    assert same.choices(3) == 8
    assert (Enumerated(rate).shortest_is_worst, Enumerated(rate).choices(3)) == (True, 2)
    assert not Enumerated(rate).has_paper_bound


class WorseNearby(CheckedDeletion):
    """A single substitution is worse than several: what would be missed if only short common subsequences counted."""

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        overlap = super().overlap(length, other_length, common)
        single = (other_length == length) & (common == length - 1)
        return replace(overlap, inside=np.where(single, 0.0, overlap.inside))


def test_a_neighbour_that_is_worse_than_a_farther_one_counts() -> None:
    noise = WorseNearby(FixedRate(0.9))
    assert certified_radius(1.0, length=20, noise=noise) == 0
    assert certified_radius(1.0, 0.0, length=20, noise=noise) == 0
    assert (0, 0, 1) not in certified_frontier(1.0, length=20, noise=noise)


def test_what_a_subclass_adds_is_not_cached_unless_it_says_so() -> None:
    class Switched(Deletion):
        factor = 1.0

        def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
            overlap = super().overlap(length, other_length, common)
            return replace(overlap, inside=overlap.inside * self.factor)

    noise = Switched(FixedRate(0.9))
    assert Deletion(FixedRate(0.9)).cacheable
    assert not noise.cacheable
    assert not Deletion(RootRate(0.6)).cacheable
    assert certified_radius(1.0, length=20, noise=noise) == 6
    Switched.factor = 0.0
    assert certified_radius(1.0, length=20, noise=noise) == 0


@dataclass(frozen=True)
class Unfinished(Noise):
    """Without the abstract methods."""


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: register_noise("my noise"), "the name of a noise must be such as 'my_noise', got 'my noise'"),
        (
            lambda: register_noise("deletion")(ScatteredMasking),
            "the name of a noise must not be taken, got 'deletion'",
        ),
        (
            lambda: register_noise("loud")(Unfinished),
            "a noise must define every abstract method, Unfinished lacks draw_rows, overlap, share_removed",
        ),
    ],
)
def test_bad_registrations(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
