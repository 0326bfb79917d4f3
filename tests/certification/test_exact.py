"""Exact certificates of arrays: prediction, radii, stored integers, rounding of floats and bad input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.certification.exact import FORMAT


def random_certificate(rng: np.random.Generator) -> ad.ExactCertificate:
    tokens, width = int(rng.integers(0, 6)), int(rng.integers(1, 4))
    scores = rng.integers(-5, 6, (tokens, width))
    return ad.exact_certificate(
        scores,
        rng.integers(-5, 6, width),
        5,
        classes=list(np.arange(max(2, width))),
        unit=rng.choice(["word", "char", "byte"]),
    )


def test_every_value_follows_from_the_stored_integers() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        certificate = random_certificate(rng)
        again = ad.ExactCertificate.from_json(certificate.to_json())
        assert again.to_dict() == certificate.to_dict()
        assert (again.label, again.radius, again.alpha) == (certificate.label, certificate.radius, 0.0)
        assert again.frontier() == certificate.frontier()
        assert not again.abstained
        assert again.permutations


def test_single_scores_and_thresholds() -> None:
    for threshold in (-2, 0, 2.5, 3, 10):
        certificate = ad.exact_certificate([3, 2, -2], 1, 4, threshold=threshold, classes=["ham", "spam"])
        assert certificate.label == ("spam" if threshold < 4 else "ham")
        moved = ad.exact_certificate([[3], [2], [-2]], [1 - int(np.floor(threshold))], 4)
        assert certificate.radius == moved.radius


def test_floats_are_certified_for_their_exact_sums() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        integers, offsets = rng.integers(-5, 6, (4, 3)), rng.integers(-9, 10, 3)
        exact = ad.exact_certificate(integers, offsets, 5)
        factor = float(rng.uniform(0.1, 3))
        rounded = ad.exact_certificate(integers * factor, offsets * factor, 5 * factor)
        # Where the exact certificate has a tie, the rounded one cannot decide.
        assert rounded.radius <= exact.radius
        nudged = ad.exact_certificate(1000 * integers, 1000 * offsets + np.eye(3, dtype=int)[exact.answer], 5000)
        close = ad.exact_certificate(integers * 1.0, offsets + np.eye(3)[exact.answer] / 1000, 5.0)
        assert (close.label, close.radius) == (nudged.label, nudged.radius)
    assert ad.exact_certificate([[0.1, 0.1]], [0.0, 0.0], 1.0).abstained  # a tie of floats is in doubt


def test_a_bound_between_integers_holds_for_tokens_that_are_no_integers() -> None:
    """Also where all scores of a text happen to be integers, as those of an empty text."""
    assert ad.exact_certificate([], 5, 0.9).radius == 5  # the least sum that 6 tokens reach is −0.4
    assert ad.exact_certificate([1, 1], 5, 1.5, ops="ins").radius == 4


def test_touchable_tokens() -> None:
    free, fixed = (ad.exact_certificate([5, 1, 1], 0, 5, ops="del", touchable=t) for t in (None, [False, True, True]))
    assert (free.radius, fixed.radius) == (2, 3)


def test_character_radius_of_each_unit() -> None:
    scores = [1] * 40
    radii = {unit: ad.exact_certificate(scores, 0, 1, unit=unit).character_radius for unit in ("word", "char", "byte")}
    assert radii == {"word": 13, "char": 19, "byte": 4}  # a character costs 3, 2 and 8 of 39
    assert ad.exact_certificate(scores, 0, 1).character_radius is None


def test_a_million_tokens() -> None:
    scores = np.tile([3, -1, 2, 0], 250_000)
    assert ad.exact_certificate(scores, 0, 3).radius == (10**6 - 1) // 6


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (([1, 2], 0, 0), "bound"),
        (([1, 2], 0, 1), "bound"),
        (([1, 2], 0, float("inf")), "bound"),
        (([[1, 2]], [0, 0, 0], 3), "scores"),
        (([float("nan")], 0, 3), "scores"),
        ((["a"], 0, 3), "scores"),
        (([[1, 2], [3]], [0, 0], 3), "same length, got"),
        (([2**50], 0, 2**50), "64 bits"),
        (([2**61], 0, 2**61), "scores"),
        (([0], 2**50, 1), "64 bits"),
    ],
)
def test_bad_arrays(arguments: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        ad.exact_certificate(*arguments)


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), "1", True])
def test_bad_thresholds(threshold: Any) -> None:
    with pytest.raises(ValueError, match="threshold"):
        ad.exact_certificate([1.5], 0, 3, threshold=threshold)


def test_restricted_edits_never_cover_every_text() -> None:
    for unrestricted, touchable in ((True, None), (False, [True, False])):
        certificate = ad.exact_certificate([5, 5], 0, 5, ops="del,sub", touchable=touchable)
        certificate = replace(certificate, replacements=None if unrestricted else np.full((2, 2), -5))
        assert certificate.radius == (0 if unrestricted else 2)
        assert not certificate.covers_every_text
    assert certificate.log10_cardinality() == 0.0  # the input itself


@pytest.mark.parametrize("unit", ["char", "byte"])
def test_synonyms_do_not_limit_edits_of_characters(unit: str) -> None:
    free = ad.exact_certificate([1] * 40, 0, 1, unit=unit)
    assert replace(free, replacements=np.full((40, 2), -1)).character_radius == free.character_radius


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"format": 1}, "format"),
        ({"label": 0}, "label"),
        ({"scores": [[1, 2, 3]]}, "scores"),
        ({"scores": [[1.5, 2]]}, "scores"),
        ({"scores": [[1], [2, 3]]}, "scores"),
        ({"reach": [2**70, 0]}, "reach"),
        ({"offsets": None}, "offsets"),
        ({"touchable": [1, 0]}, "touchable"),
        ({"classes": [1], "scores": [[3], [2]], "offsets": [0], "reach": [3]}, "classes"),
        ({"reach": [-1, 3]}, "reach"),
        ({"reach": [3, -1]}, "reach"),
        ({"scores": [[4, 0], [0, 9]]}, "reach"),
        ({"replacements": [[2**62, 2**62]] * 2}, "64 bits"),
        ({"input_hash": "\x1b[31m"}, "input_hash"),
        ({"unit": {"kind": "none"}}, "unit"),
        ({"ngram": 0}, "ngram"),
        ({"ngram": 4}, "ngram"),
        ({"extra": 1}, "extra"),
    ],
)
def test_damaged_certificates(changes: dict[str, Any], word: str) -> None:
    values = ad.exact_certificate([3, 2], 0, 3).to_dict()
    assert values["format"] == FORMAT
    with pytest.raises(ValueError, match=word):
        ad.ExactCertificate.from_dict(values | changes)
