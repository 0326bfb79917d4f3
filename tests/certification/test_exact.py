"""Exact certificates of arrays: prediction, radii, stored integers, rounding of floats and bad input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.certification.certificate import digest_of
from adaptdel.certification.scores import Filter, Scores, ScoresPlan, exact_certificate
from adaptdel.certification.verify import verify


def test_single_scores_and_thresholds() -> None:
    for threshold in (-2, 0, 2.5, 3, 10):
        certificate = exact_certificate([3, 2, -2], 1, 4, threshold=threshold, classes=["ham", "spam"])
        assert certificate.label == ("spam" if threshold < 4 else "ham")
        moved = exact_certificate([[3], [2], [-2]], [1 - int(np.floor(threshold))], 4)
        assert certificate.radius == moved.radius


def test_floats_are_certified_for_their_exact_sums() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        integers, offsets = rng.integers(-5, 6, (4, 3)), rng.integers(-9, 10, 3)
        exact = exact_certificate(integers, offsets, 5)
        factor = float(rng.uniform(0.1, 3))
        rounded = exact_certificate(integers * factor, offsets * factor, 5 * factor)
        # Where the exact certificate has a tie, the rounded one cannot decide.
        assert rounded.radius <= exact.radius
        nudged = exact_certificate(1000 * integers, 1000 * offsets + np.eye(3, dtype=int)[exact.answer], 5000)
        close = exact_certificate(integers * 1.0, offsets + np.eye(3)[exact.answer] / 1000, 5.0)
        assert (close.label, close.radius) == (nudged.label, nudged.radius)
    assert exact_certificate([[0.1, 0.1]], [0.0, 0.0], 1.0).abstained  # a tie of floats is in doubt


def test_a_bound_between_integers_holds_for_tokens_that_are_no_integers() -> None:
    """Also where all scores of a text happen to be integers, as those of an empty text."""
    assert exact_certificate([], 5, 0.9).radius == 5  # the least sum that 6 tokens reach is −0.4
    assert exact_certificate([1, 1], 5, 1.5, ops="ins").radius == 4


def test_touchable_tokens() -> None:
    free, fixed = (exact_certificate([5, 1, 1], 0, 5, ops="del", touchable=t) for t in (None, [False, True, True]))
    assert (free.radius, fixed.radius) == (2, 3)


def test_character_radius_of_each_unit() -> None:
    scores = [1] * 40
    radii = {unit: exact_certificate(scores, 0, 1, unit=unit).character_radius for unit in ("word", "char", "byte")}
    assert radii == {"word": 13, "char": 19, "byte": 4}  # a character costs 3, 2 and 8 of 39
    assert exact_certificate(scores, 0, 1).character_radius is None


def test_a_million_tokens() -> None:
    scores = np.tile([3, -1, 2, 0], 250_000)
    assert exact_certificate(scores, 0, 3).radius == (10**6 - 1) // 6


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
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
        exact_certificate(*arguments)


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), "1", True])
def test_bad_thresholds(threshold: Any) -> None:
    with pytest.raises(ValueError, match="threshold"):
        exact_certificate([1.5], 0, 3, threshold=threshold)


def limited(certificate: ad.Certificate, replacements: Any) -> ad.Certificate:
    assert isinstance(certificate.evidence, Scores)
    return replace(certificate, evidence=replace(certificate.evidence, replacements=replacements))


def test_restricted_edits_never_cover_every_text() -> None:
    for unrestricted, touchable in ((True, None), (False, [True, False])):
        certificate = exact_certificate([5, 5], 0, 5, ops="del,sub", touchable=touchable)
        certificate = limited(certificate, None if unrestricted else np.full((2, 2), -5))
        assert certificate.radius == (0 if unrestricted else 2)
        assert not certificate.covers_every_text
    assert certificate.log10_cardinality() == 0.0  # the input itself


@pytest.mark.parametrize("unit", ["char", "byte"])
def test_synonyms_do_not_limit_edits_of_characters(unit: str) -> None:
    free = exact_certificate([1] * 40, 0, 1, unit=unit)
    assert limited(free, np.full((40, 2), -1)).character_radius == free.character_radius


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        ("length", 3, "scores"),
        ("classes", [0, 1, 2], "offsets"),
        ("classes", [1], "classes"),
        ("input_hash", "\x1b[31m", "input_hash"),
        ("unit", {"kind": "none"}, "unit"),
        ("plan ngram", 0, "ngram"),
        ("plan ngram", 4, "scores"),
        ("plan threshold", 2**60, "threshold"),
        ("evidence scores", [[1, 2, 3]], "scores"),
        ("evidence scores", [[1.5, 2]], "scores"),
        ("evidence scores", [[1], [2, 3]], "scores"),
        ("evidence scores", [[4, 0], [0, 9]], "reach"),
        ("evidence reach", [2**70, 0], "reach"),
        ("evidence reach", [-1, 3], "reach"),
        ("evidence offsets", None, "offsets"),
        ("evidence touchable", [1, 0], "touchable"),
        ("evidence replacements", [[2**62, 2**62]] * 2, "64 bits"),
        ("evidence replacements", [[7, 0]] * 2, "reach"),
        ("evidence rounding", 2, "rounding"),
    ],
)
def test_damaged_certificates(path: str, value: Any, word: str) -> None:
    """Although the digest is that of the damaged file."""
    values = exact_certificate([3, 2], 0, 3).to_dict()
    assert verify(values) == []
    *outer, name = path.split()
    (values[outer[0]] if outer else values)[name] = value
    [sentence] = verify(values | {"digest": digest_of(values)})
    assert word in sentence


def filtered(gains: list[int], rule: Filter, offset: int = 0, **others: Any) -> ad.Certificate:
    """The certificate of a text for a filter of class 1, where a token has a score of at most 10 in size."""
    scores = np.array([[0, gain] for gain in gains])
    evidence = Scores(scores, np.array([0, offset]), np.zeros(2, dtype=np.int64), filter=rule, **others)
    evidence = replace(evidence, reach=np.array([10, 0] if evidence.answer else [0, 10]))
    return ad.Certificate(evidence.answer, (0, 1), ScoresPlan(filter=rule, threat=ad.Threat("sub")), evidence)


def test_padding_may_get_a_text_flagged_by_its_segment_where_no_sum_can() -> None:
    certificate = filtered([-3, 1, 2, -2], Filter(label=1, drift=10, segment=15))
    assert (certificate.label, certificate.padded_radius, certificate.padding) == (0, -1, False)


@pytest.mark.parametrize("label", [0, 1])
def test_a_synonym_saves_no_drift(label: int) -> None:
    certificate = filtered([9] * 4, Filter(label=1, drift=5), -4 if label else -17)
    gains = np.array([[-3, 0] if label else [0, 10]] * 4)  # of synonyms with scores of 3 and 10
    # the sum is 12 and falls by 6, or it is -1 and rises by 1
    assert (certificate.label, limited(certificate, gains).radius) == (label, 1)


def test_no_frontier_of_tokens_holds_against_padding() -> None:
    plan = ScoresPlan(threat=ad.Threat(padding=True))
    assert replace(exact_certificate([3, 2, 2], 0, bound=3), plan=plan).frontier() == []


@pytest.mark.parametrize("rule", [Filter(label=1, drift=2**53), Filter(label=1, segment=5, segment_drift=2**53)])
def test_no_drift_overflows(rule: Filter) -> None:
    assert "64 bits" in str(verify(filtered([0] * 1030, rule).to_dict()))


def test_a_frontier_edits_no_more_tokens_than_there_are() -> None:
    evidence = filtered([0, 0], Filter(label=1, drift=10, segment=0, segment_drift=10), -1).evidence
    certificate = ad.Certificate(0, (0, 1), ScoresPlan(filter=Filter(label=1, drift=10, segment=0)), evidence)
    most = certificate.radius
    assert most == 2**16
    assert certificate.frontier() == [(d, most - d - s, s) for d in range(3) for s in range(3 - d)]


def test_padding_is_glued_to_words_that_no_edit_may_touch() -> None:
    touchable = np.array([False, True, False])
    certificate = filtered([-9, 9, -9], Filter(label=1, drift=10), 15, touchable=touchable)
    assert (certificate.label, certificate.radius, certificate.padded_radius) == (0, 3, -1)


def test_a_filter_has_no_rounded_scores() -> None:
    assert "rounding" in str(verify(filtered([9, 9], Filter(label=1, segment=17), rounding=1).to_dict()))
