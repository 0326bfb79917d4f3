"""Radii: closed forms at fixed rates, figures from the design, edges, batches; frontiers against enumeration."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from math import comb, inf, nextafter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptdel import (
    BinnedRate,
    Deletion,
    FixedRate,
    InterpolatedRate,
    LengthRate,
    Masking,
    NoNoise,
    certified_frontier,
    certified_radius,
    certified_top_k,
    clopper_pearson,
    least_probability,
)
from adaptdel.core.bounds import upper
from adaptdel.core.checks import FloatArray
from adaptdel.core.noise import Noise
from adaptdel.core.radius import ToleranceTable, largest, neighbour_test
from adaptdel.core.rates import DENOMINATOR, Rate
from adaptdel.core.threat import EVERY_SET, Threat
from tests.exact import TableRate, random_rate

UNANIMOUS = clopper_pearson(4000, 4000, 0.05)[0]
ADAPTDEL = Deletion(LengthRate(0.9, 23))
BINNED = Deletion(BinnedRate([0, 137, 230, 324], [4, 9, 6, 14]))
rates = st.sampled_from(
    [
        FixedRate(0.9),
        FixedRate(0.0),
        FixedRate(1.0),
        FixedRate(0.5),
        LengthRate(0.9, 23),
        LengthRate(0.5, 3),
        LengthRate(0.0, 10**6),
        BINNED.rate,
        InterpolatedRate([10, 40, 60], [3, 9, 6]),
        TableRate((0, DENOMINATOR - 1, DENOMINATOR, 1, 3 * 2**30)),
    ]
)
sets = st.sampled_from(EVERY_SET)


# The closed forms of RS-Del (all its threat models) and CERT-ED: μ' at a fixed rate ψ after r edits.
CLOSED: dict[tuple[str, ...], Callable[[Fraction, Fraction, int], Fraction]] = {
    ("del",): lambda mu, psi, r: 1 - (1 - mu) / psi**r,
    ("ins",): lambda mu, psi, r: mu * psi**r,
    ("del", "ins"): lambda mu, psi, r: min(1 - (1 - mu) / psi**r, mu * psi**r),
    ("sub",): lambda mu, psi, r: mu - 1 + psi**r,
    ("del", "sub"): lambda mu, psi, r: mu - 1 + psi**r,
    ("ins", "sub"): lambda mu, psi, r: mu - 1 + psi**r,
    ("del", "ins", "sub"): lambda mu, psi, r: mu - 1 + psi**r,  # CERT-ED
}


@given(sets, st.floats(0.5, 1), st.floats(0.3, 0.995), st.integers(300, 2000))
def test_closed_forms_at_a_fixed_rate(ops: tuple[str, ...], p: float, psi: float, length: int) -> None:
    rate = FixedRate(psi)
    exact = Fraction(rate(0))
    expected = -1
    while expected < length and CLOSED[ops](Fraction(p), exact, expected + 1) > Fraction(1, 2):
        expected += 1
    assert certified_radius(p, length=length, noise=Deletion(rate), ops=ops) == expected


def test_figures_of_the_design() -> None:
    assert certified_radius(UNANIMOUS, length=400, noise=ADAPTDEL, ops=["del"]) == 86
    assert certified_radius(UNANIMOUS, length=400, noise=ADAPTDEL, ops=["del"], bound="paper") == 54
    assert certified_radius(UNANIMOUS, length=228, noise=BINNED) == 17
    assert certified_radius(UNANIMOUS, length=228, noise=BINNED, bound="paper") == 11
    dissent = clopper_pearson(3900, 4000, 0.05)[0]
    smooth = Deletion(InterpolatedRate([68.5, 183.5, 277, 418], [4, 9, 6, 14]))
    assert certified_radius(dissent, length=326, noise=BINNED) == 2
    assert certified_radius(dissent, length=326, noise=smooth) == 22


@pytest.mark.parametrize(("length", "printed", "without_lemma_6"), [(10, 2, 4), (14, 3, 6), (32, 5, 6), (33, 6, 6)])
def test_the_printed_rounding_matters_for_short_texts(
    length: int, printed: int, without_lemma_6: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lemma 7 of the paper calls it negligible; the tight bound has the radius of CERT-ED's closed form."""
    noise = Deletion(FixedRate(0.9))
    assert certified_radius(0.999, length=length, noise=noise) == 6
    assert certified_radius(0.999, length=length, noise=noise, bound="paper") == printed
    monkeypatch.setattr("adaptdel.core.radius.upper", lambda p, overlap, _: upper(p, overlap))
    assert certified_radius(0.999, length=length, noise=noise, bound="paper") == without_lemma_6


@given(rates, st.integers(0, 60), st.floats(0.5, 1))
def test_a_stronger_attacker_never_has_a_larger_radius(rate: object, length: int, p: float) -> None:
    radii = {
        frozenset(ops): certified_radius(p, length=length, noise=Deletion(rate), ops=ops)  # type: ignore[arg-type]
        for ops in EVERY_SET
    }
    for weak, strong in ((a, b) for a in radii for b in radii if a < b):
        # without insertions the radius ends at the length, where nothing is left to edit
        assert radii[strong] <= radii[weak] or (radii[weak] == length and "ins" in strong)


@given(rates, sets, st.integers(0, 60), st.integers(0, 8))
def test_least_probability_is_where_the_radius_begins(
    rate: object, ops: tuple[str, ...], length: int, radius: int
) -> None:
    noise = Deletion(rate)  # type: ignore[arg-type]
    least = least_probability(radius, length=length, noise=noise, ops=ops)
    assert least > 0.5
    capped = min(radius, length) if "ins" not in ops else radius
    if least <= 1:
        assert certified_radius(least, length=length, noise=noise, ops=ops) >= capped
        below = nextafter(least, 0)
        if below > 0.5 and capped:
            assert certified_radius(below, length=length, noise=noise, ops=ops) < capped
    else:
        assert least == inf
        assert certified_radius(1.0, length=length, noise=noise, ops=ops) < capped


@given(rates, sets, st.integers(0, 40), st.floats(0, 1), st.floats(0, 1))
def test_many_classes_lie_between_two_class_cases(
    rate: object, ops: tuple[str, ...], length: int, p1: float, p2: float
) -> None:
    noise = Deletion(rate)  # type: ignore[arg-type]
    radius = certified_radius(p1, p2, length=length, noise=noise, ops=ops)
    assert radius >= certified_radius(p1, length=length, noise=noise, ops=ops)
    if p2 <= 1 - p1:
        assert radius <= max(certified_radius(1 - p2, length=length, noise=noise, ops=ops), -1)
    assert (radius >= 0) == (p1 > min(p2, 1 - p1))


def test_the_threshold_one_half_is_the_two_class_case() -> None:
    noise = Deletion(FixedRate(0.9))
    for p in (0.6, 0.9, 0.99):
        for ops in EVERY_SET:
            radius = certified_radius(p, length=50, noise=noise, ops=ops)
            assert certified_radius(p, length=50, noise=noise, ops=ops, threshold=0.5) == radius
            assert certified_radius(1 - p, length=50, noise=noise, ops=ops, threshold=0.5) == radius
    assert certified_radius(0.3, length=50, noise=noise, threshold=0.3) == 0


def test_top_k() -> None:
    noise = Deletion(FixedRate(0.9))
    others = [0.25, 0.2, 0.1]
    radii = [certified_top_k(0.45, others, k=k, length=80, noise=noise) for k in (1, 2, 3)]
    assert radii == sorted(radii)
    assert radii[0] == certified_radius(0.45, 0.25, length=80, noise=noise)
    exact = Fraction(noise.rate(80))
    r = radii[1]  # fixed rate: p1 − 1 + ψ^r > p2 + 1 − ψ^r
    assert Fraction(0.45) - 1 + exact**r > Fraction(0.2) + 1 - exact**r
    assert Fraction(0.45) - 1 + exact ** (r + 1) <= Fraction(0.2) + 1 - exact ** (r + 1)
    assert certified_top_k(0.1, [0.5, 0.4], k=1, length=80, noise=noise) == -1
    assert certified_top_k(0.45, [0.9, 0.9], k=2, length=80, noise=noise) >= 0  # together they have at most 0.55


@given(st.integers(0, 200), st.floats(0, 1), st.floats(0.5, 1))
def test_the_hamming_certificate_of_masking(length: int, fraction: float, p: float) -> None:
    noise = Masking(fraction)
    kept = length - noise.masks(length)

    def exact(probability: Fraction) -> int:
        if probability <= Fraction(1, 2):
            return -1
        radius = 0
        while radius < length:
            missed = Fraction(comb(length - radius - 1, kept), comb(length, kept))
            if not probability - (1 - missed) > Fraction(1, 2):
                break
            radius += 1
        return radius

    for bound in ("tight", "paper"):
        radius = certified_radius(p, length=length, noise=noise, ops=["sub"], bound=bound)
        assert exact(Fraction(p) - Fraction(1, 10**12)) <= radius <= exact(Fraction(p))


def test_masking_with_many_classes() -> None:
    noise = Masking(0.9)
    radius = certified_radius(0.7, 0.1, length=100, noise=noise, ops=["sub"])
    gap = [1 - Fraction(comb(100 - r, 10), comb(100, 10)) for r in (radius, radius + 1)]
    assert 2 * gap[0] < Fraction(0.7) - Fraction(0.1) <= 2 * gap[1]


@pytest.mark.parametrize("ops", EVERY_SET, ids="+".join)
class TestEdges:
    def test_without_noise_nothing_is_certified(self, ops: tuple[str, ...]) -> None:
        assert certified_radius(1.0, length=5, noise=NoNoise(), ops=ops) == 0
        assert certified_radius(0.5, length=5, noise=NoNoise(), ops=ops) == -1

    def test_the_empty_input(self, ops: tuple[str, ...]) -> None:
        radius = certified_radius(1.0, length=0, noise=Deletion(FixedRate(0.9)), ops=ops)
        assert radius == (6 if "ins" in ops else 0)

    def test_certain_deletion_certifies_everything(self, ops: tuple[str, ...]) -> None:
        radius = certified_radius(1.0, length=9, noise=Deletion(FixedRate(1.0)), ops=ops)
        assert radius == (2**16 if "ins" in ops else 9)

    def test_a_million_tokens(self, ops: tuple[str, ...]) -> None:
        noise = Deletion(FixedRate(0.999))
        radius = certified_radius(UNANIMOUS, length=10**6, noise=noise, ops=ops)
        mu, psi = Fraction(UNANIMOUS), Fraction(noise.rate(0))
        assert CLOSED[ops](mu, psi, radius) > Fraction(1, 2) >= CLOSED[ops](mu, psi, radius + 1)


def test_a_million_tokens_at_an_adaptive_rate() -> None:
    assert certified_radius(0.99, length=10**6, noise=ADAPTDEL) > 25_000


@given(rates, sets, st.lists(st.tuples(st.integers(0, 40), st.floats(0, 1)), min_size=1, max_size=40))
def test_a_batch_is_the_same_as_one_by_one(rate: object, ops: tuple[str, ...], inputs: list[tuple[int, float]]) -> None:
    noise = Deletion(rate)  # type: ignore[arg-type]
    lengths, p = [n for n, _ in inputs], [q for _, q in inputs]
    alone = [certified_radius(q, length=n, noise=noise, ops=ops) for n, q in inputs]
    assert np.asarray(certified_radius(p, length=lengths, noise=noise, ops=ops)).tolist() == alone
    many = certified_radius(p, np.array(p) / 3, length=lengths, noise=noise, ops=ops)
    assert np.asarray(many).tolist() == [certified_radius(q, q / 3, length=n, noise=noise, ops=ops) for n, q in inputs]


class WobblyRate(Rate):
    """A rate that can change, and be nonsense."""

    kind = "wobbly"

    def __init__(self, p: float) -> None:
        self.p = p

    def real(self, lengths: FloatArray) -> FloatArray:
        return np.full(np.shape(lengths), self.p)


def test_a_rate_that_changes_is_not_remembered() -> None:
    rate = WobblyRate(0.99)
    assert certified_radius(0.99, length=9, noise=Deletion(rate)) == 67
    rate.p = 0.5
    assert certified_radius(0.99, length=9, noise=Deletion(rate)) == 0
    rate.p = float("nan")
    with pytest.raises(ValueError, match="a rate must be a number at every length, got NaN from"):
        certified_radius(0.99, length=9, noise=Deletion(rate))


def test_large_batches_at_large_lengths_are_not_filled() -> None:
    """Filling a table of 30,000 radii would take minutes."""
    p = np.repeat([0.9, 0.999], 50)
    radii = np.asarray(certified_radius(p, length=10**5, noise=ADAPTDEL))
    assert radii[0] == certified_radius(0.9, length=10**5, noise=ADAPTDEL)
    assert (radii[50:] == radii[-1]).all()
    paper = np.asarray(certified_radius(np.full(3000, 0.99), length=200, noise=ADAPTDEL, bound="paper"))
    assert (paper == paper[0]).all()


def test_shapes() -> None:
    radii = certified_radius(np.full((2, 3), 0.9), length=np.array([10, 20, 30]), noise=ADAPTDEL)
    assert isinstance(radii, np.ndarray)
    assert radii.shape == (2, 3)
    assert isinstance(certified_radius(np.float64(0.9), length=np.int64(10), noise=ADAPTDEL), int)
    assert np.asarray(certified_radius([], length=[], noise=ADAPTDEL)).shape == (0,)


@pytest.mark.parametrize(
    "arguments",
    [
        {"p1": 1.2}, {"p1": float("nan")}, {"p1": -0.1}, {"p1": "high"}, {"p1": True}, {"p1": 10**400},
        {"p1": [0.9, 2.0], "length": [3, 4]}, {"p1": [0.9, 0.9], "length": [1, 2, 3]},
        {"p2": 3}, {"p2": 0.1, "threshold": 0.5}, {"threshold": 1.5},
        {"length": -1}, {"length": 2.5}, {"length": "x"}, {"length": None}, {"length": 2**60},
        {"length": [[1], [1, 2]]},
        {"ops": "swap"}, {"ops": "edit", "noise": Masking(0.9)}, {"bound": "loose"},
        {"noise": 0.9}, {"noise": FixedRate(0.9)},
    ],
    ids=str,
)  # fmt: skip
def test_an_error_begins_with_the_argument(arguments: dict[str, object]) -> None:
    good: dict[str, object] = {"p1": 0.9, "length": 10, "noise": ADAPTDEL}
    with pytest.raises(ValueError, match=rf"^(the )?{next(iter(arguments))}\b") as caught:
        certified_radius(**(good | arguments))  # type: ignore[call-overload]
    assert "\n" not in str(caught.value)


def _searched(table: ToleranceTable, q: float) -> int:
    return largest(lambda radius: table.tolerance(radius) >= q, 0, table.reach)


@pytest.mark.parametrize("ops", EVERY_SET)
@pytest.mark.parametrize("noise", [ADAPTDEL, BINNED, Deletion(FixedRate(0.9)), Deletion(FixedRate(0.0))], ids=repr)
def test_a_table_that_is_filled_at_once_gives_the_radii_of_a_search(noise: Noise, ops: tuple[str, ...]) -> None:
    """Also where q is exactly a tolerance, and next to it."""
    for length in (0, 1, 2, 40, 137, 230, 400):
        table, other = (ToleranceTable(length, noise, Threat(ops), 0.5) for _ in range(2))
        tolerances = [other.tolerance(radius) for radius in range(1, min(other.reach, 16) + 1)]
        edges = [q for t in tolerances for q in (t, nextafter(t, -1), nextafter(t, 1)) if 0 <= q < 0.5]
        for q in (0.0, 0.01, 0.1, 0.3, 0.499, *edges):
            assert table.radius(q) == _searched(other, q), (length, q)


def test_a_small_table_certifies_no_radius_whose_smaller_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were a rounding error to make a tolerance exceed that of a smaller radius, the smaller one would count."""
    table = ToleranceTable(100, Deletion(FixedRate(0.9)), Threat("edit"), 0.5)
    radius = np.arange(1, table.reach + 1)
    tolerances = np.where(radius == 2, 0.1, 0.3)
    monkeypatch.setattr("adaptdel.core.radius.tolerance", lambda level, overlap: np.repeat(tolerances, 2 * radius + 1))
    assert table.radius(0.2) == 1
    assert table.radius(0.05) == table.reach


Triple = tuple[int, int, int]


def by_enumeration(
    p1: float, p2: float | None, length: int, noise: Noise, ops: tuple[str, ...], bound: str
) -> set[Triple]:
    """All boxes of triples, one by one, up to a size."""
    test = neighbour_test(p1, 1 - p1 if p2 is None else p2, noise, length, bound, None)
    most = [10 if op in ops else 0 for op in ("del", "ins", "sub")]
    certified: set[Triple] = set()
    for d, i, s in product(*(range(m + 1) for m in most)):
        before = [(d - 1, i, s), (d, i - 1, s), (d, i, s - 1)]
        if d + s > length or any(t not in certified for t in before if min(t) >= 0):
            continue
        if (d, i, s) == (0, 0, 0) or test(np.array([length + i - d]), np.array([length - d - s]))[0]:
            certified.add((d, i, s))
    return {
        t for t in certified if not any(tuple(np.add(t, step)) in certified for step in np.eye(3, dtype=int).tolist())
    }


@pytest.mark.parametrize("ops", EVERY_SET, ids="+".join)
@pytest.mark.parametrize("bound", ["tight", "paper"])
@pytest.mark.parametrize("length", [0, 3, 9])
def test_frontiers_by_enumeration(ops: tuple[str, ...], bound: str, length: int) -> None:
    for seed in range(6):
        noise = Deletion(random_rate(random.Random(seed))) if seed % 2 else Deletion(LengthRate(0.8, 2))
        for p1, p2 in ((0.9, None), (0.7, 0.1)):
            if max(certified_radius(p1, p2, length=length, noise=noise, ops=[op], bound=bound) for op in ops) > 9:
                continue
            if certified_radius(p1, p2, length=length, noise=noise, ops=ops, bound=bound) < 0:
                continue
            found = certified_frontier(p1, p2, length=length, noise=noise, ops=ops, bound=bound)
            assert set(found) == by_enumeration(p1, p2, length, noise, ops, bound)
            assert found == sorted(found)


@pytest.mark.parametrize(("p", "threshold"), [(0.97, None), (0.9, 0.2), (0.03, 0.2)])
@pytest.mark.parametrize("bound", ["tight", "paper"])
def test_the_radius_is_the_diagonal(bound: str, p: float, threshold: float | None) -> None:
    noise = Deletion(LengthRate(0.9, 9))
    radius = certified_radius(p, length=150, noise=noise, bound=bound, threshold=threshold)
    frontier = certified_frontier(p, length=150, noise=noise, bound=bound, threshold=threshold)

    def under(triple: Triple) -> bool:
        return any(all(a <= b for a, b in zip(triple, corner, strict=True)) for corner in frontier)

    triples = [(d, i, radius - d - i) for d in range(radius + 1) for i in range(radius + 1 - d)]
    assert all(under(t) for t in triples)
    triples = [(d, i, radius + 1 - d - i) for d in range(radius + 2) for i in range(radius + 2 - d)]
    assert not all(under(t) for t in triples)


def test_frontiers_without_edits() -> None:
    assert certified_frontier(0.4, length=5, noise=Deletion(FixedRate(0.9))) == []
    assert certified_frontier(1.0, length=5, noise=NoNoise()) == [(0, 0, 0)]
    masked = certified_radius(0.99, length=50, noise=Masking(0.9), ops=["sub"])
    assert certified_frontier(0.99, length=50, noise=Masking(0.9), ops=["sub"]) == [(0, 0, masked)]


def test_a_frontier_that_is_too_large() -> None:
    with pytest.raises(ValueError, match=r"^the frontier of \d+ deletions by \d+ insertions at length 60000 has over"):
        certified_frontier(0.999, length=60_000, noise=Deletion(LengthRate(0.9, 5)))
