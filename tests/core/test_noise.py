from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy import stats

from adaptdel import Deletion, FixedRate, LengthRate, Masking, NoNoise, certified_radius, noise_from_dict
from adaptdel.core.noise import Noise, RandomDeletion, RandomLength, _smallest

NOISES: list[Noise] = [
    Deletion(FixedRate(0.9)),
    Deletion(LengthRate(0.5, 3)),
    Deletion(FixedRate(1.0)),
    RandomDeletion(0.7, 0.99),
    RandomLength(2, 12),
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
        "adaptdel.core.noise._draws", lambda gen, shape: gen.integers(0, 4, size=shape, dtype=np.uint32)
    )
    noise = Masking(0.5)
    whole = noise.sample(4, 300, rng())
    assert (whole.sum(axis=1) == 2).all()
    assert np.array_equal(np.concatenate(list(noise.chunks(4, 300, rng(), max_bytes=16))), whole)
    _, counts = np.unique(noise.sample(4, 6000, rng(2)) @ (1 << np.arange(4)), return_counts=True)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_ties_are_seen() -> None:
    kept, tied = _smallest(np.array([[3, 1, 2, 2], [1, 1, 2, 3]], dtype=np.uint32), 2)
    assert tied.tolist() == [True, False]
    assert kept[1].tolist() == [True, True, False, False]


def test_a_million_tokens_need_little_memory() -> None:
    tracemalloc.start()
    kept = 0
    for chunk in Deletion(FixedRate(0.999)).chunks(10**6, 12, rng()):
        kept += int(chunk.sum())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 11_000 < kept < 13_000
    assert peak < 64e6  # 5000 samples would need no more


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.SFC64, np.random.Philox])
def test_any_generator_will_do(bits: type[np.random.BitGenerator]) -> None:
    kept = int(Deletion(FixedRate(0.75)).sample(500, 500, np.random.Generator(bits(0))).sum())
    assert stats.binomtest(kept, 250_000, 0.25).pvalue > 1e-6


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Masking(1.2), "fraction must be a probability in [0, 1], got 1.2"),
        (lambda: Deletion(0.9), "rate must be a Rate such as FixedRate(0.9), got 0.9"),  # type: ignore[arg-type]
        (lambda: NoNoise().sample(-1, 2, rng()), "length must be a whole number of at least 0"),
        (lambda: NoNoise().sample(1, -2, rng()), "size must be a whole number of at least 0, got -2"),
        (lambda: noise_from_dict({"kind": "loud"}), "the kind of a noise must be one of deletion, masking, none"),
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


def test_random_lengths_cover_their_range_whatever_the_length() -> None:
    for length in (400, 2000):
        kept = RandomLength(100, 300).sample(length, 4000, rng()).sum(axis=1)
        assert kept.mean() == pytest.approx(200, abs=4)
        assert kept.std() == pytest.approx(
            (200**2 / 12 + 200 - (100**2 + 200**2 / 12 + 300 * 100) / length) ** 0.5, rel=0.03
        )
    assert RandomLength(5, 9).sample(4, 50, rng()).all()  # shorter than what is kept
    assert stats.binomtest(int(RandomLength(3, 3).sample(10, 4000, rng()).sum()), 40_000, 0.3).pvalue > 1e-3
    with pytest.raises(ValueError, match=r"^noise must have a rate for every length to certify, got RandomLength"):
        certified_radius(0.9, length=5, noise=RandomLength(2, 3))


@pytest.mark.parametrize(("low", "high"), [(0, 3), (-1, 3), (4, 3), (2, float("nan")), ("2", 3)])
def test_random_lengths_are_checked(low: Any, high: Any) -> None:
    with pytest.raises(ValueError, match=r"^(low|high) must be "):
        RandomLength(low, high)
