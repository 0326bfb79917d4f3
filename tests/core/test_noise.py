from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from adaptdel import (
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
    rigorous_radius,
)
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.noise import MANY_CHOICES, Noise, Overlap, RandomDeletion

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


def test_a_higher_rate_keeps_a_subset() -> None:
    """The same draws at another rate: common random numbers."""
    more, fewer = Deletion(FixedRate(0.5)).sample(50, 50, rng()), Deletion(FixedRate(0.9)).sample(50, 50, rng())
    assert (more | ~fewer).all()
    assert more.sum() > fewer.sum()


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


# Noises that are defined outside the package: tests/examples/test_own_methods.py takes one through every command.


class Unverifiable(Masking):
    exact_overlap = Noise.exact_overlap


def test_a_noise_without_exact_numbers_is_certified_but_not_verified() -> None:
    noise = Unverifiable(0.9)
    assert certified_radius(0.99, length=50, noise=noise, ops=["sub"]) > 0
    sentence = "^noise must define exact_overlap to be checked in ball arithmetic, which Unverifiable does not$"
    with pytest.raises(ValueError, match=sentence):
        rigorous_radius(0.99, length=50, noise=noise, ops=["sub"])


class Blocks(Deletion):
    """Deletes everything or nothing: what is true of `Deletion` is not true of it."""

    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        return np.repeat(super().draw_rows(1, size, rng), length, axis=1)

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        overlap = super().overlap(length, other_length, common)
        return replace(overlap, inside=overlap.inside * 0.0)


class Named(Deletion):
    """The same distribution as its parent."""


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
    assert model.certify(["a b c"])[0].alpha > 0
    same = Named(rate)
    assert [getattr(same, name) for name in promises] == [True, True, True]
    assert same.choices(3) == 8


class WorseNearby(Deletion):
    """A single substitution is worse than several: what would be missed if only short common subsequences counted."""

    shortest_is_worst = False

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
            lambda: register_noise("deletion")(Named),
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
