"""Certificates of votes that others made: what holds is proven, what was changed is caught.

What holds for every kind of evidence is in test_every_kind.py: each value changed, missing or unknown fields.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from adaptdel import (
    BinnedRate,
    ContentDeletion,
    Deletion,
    FixedRate,
    InterpolatedRate,
    LengthRate,
    Masking,
    NoNoise,
    register_noise,
)
from adaptdel.certification.certificate import Certificate, check_classes, digest_of, label_key
from adaptdel.certification.verify import verify
from adaptdel.certification.votes import Votes, VotesPlan
from adaptdel.core.confidence import Looks
from adaptdel.core.noise import NOISES, Noise
from adaptdel.models.smoothed import SmoothedClassifier
from tests.models.test_smoothed import WORDS, by_size, by_words, first_word, texts

Values = dict[str, Any]
NOISE = Deletion(FixedRate(0.9))


def certificates(count: int = 8, **settings: Any) -> list[Certificate]:
    defaults: Values = {"classes": ["neg", "pos"], "n_estimate": 600, "noise": Deletion(LengthRate(0.7, 6))}
    settings = defaults | settings
    return SmoothedClassifier(settings.pop("base", by_words), **settings).certify(texts(count, seed=4))


NOISES_BY_KIND: dict[str, list[Noise]] = {
    "deletion": [
        Deletion(rate)
        for rate in (
            LengthRate(0.7, 6), FixedRate(0.9), BinnedRate([0, 20, 40], [3, 6, 5]), InterpolatedRate([10, 50], [3, 5])
        )
    ],
    "masking": [Masking(0.7)],
    "none": [NoNoise()],
    "random_deletion": [],  # draws its rate, and certifies nothing
}  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        *({"noise": noise} for noises in NOISES_BY_KIND.values() for noise in noises),
        *({"noise": noise, "sampling": "fixed"} for noise in NOISES_BY_KIND["deletion"]),
        {"threshold": 0.3},
        {"bound": "paper"},
        {"ops": ("ins",)},
        {"base": first_word, "classes": [*WORDS, ""]},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_what_holds_is_proven_under_every_noise(settings: Values) -> None:
    assert {name for name in NOISES if NOISES.is_own(name)} == {*NOISES_BY_KIND}
    for certificate in certificates(12, **settings):
        assert verify(json.loads(certificate.to_json())) == []
        assert Certificate.from_json(certificate.to_json()) == certificate


class Praised(ContentDeletion):
    kind = "praised"

    def rate_of(self, tokens: tuple[Any, ...]) -> float:
        return 0.7 if "good" in tokens else 0.8


def test_at_a_threshold_of_1_a_search_ends_where_it_does_otherwise() -> None:
    noise = register_noise("praised")(Praised)(vocabulary=("good", "bad"), max_radius=1)
    model = SmoothedClassifier(by_words, noise, classes=["neg", "pos"], threshold=1.0, n_estimate=100)
    certificate = model.certify(["a film"])[0]
    assert certificate.radius == 1
    values = certificate.to_dict()
    assert verify(values) == []
    assert verify(forged(values, {("evidence", "tokens"): '["a", "good"]'})) == [
        "the tokens are not those of the input hash"
    ]
    for tokens in (None, "5", '"a film"', "[", 5, ["a", "film"]):
        [sentence] = verify(forged(values, {("evidence", "tokens"): tokens}))
        assert "tokens" in sentence or tokens == "["


@pytest.fixture(scope="module")
def sampled() -> Values:
    return next(c.to_dict() for c in certificates() if votes_of(c).copies is None and c.radius > 0)


def votes_of(certificate: Certificate) -> Votes:
    assert isinstance(certificate.evidence, Votes)
    return certificate.evidence


def forged(values: Values, changes: Mapping[tuple[str, ...], Any]) -> Values:
    """What a forger writes who knows how the digest is made; a value may be a function of the old one."""
    values = deepcopy(values)
    for (*path, name), value in changes.items():
        inner = values
        for part in path:
            inner = inner[part]
        inner[name] = value(inner[name]) if callable(value) else value
    return values | {"digest": digest_of(values)}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("derived radius", lambda radius: radius + 1), ("derived radius", -1), ("derived radius", 5.9),
        ("derived radius", float("inf")), ("derived p1", lambda p1: min(p1 + 0.01, 1.0)), ("derived p1", 0.6),
        ("derived p2", 1e-6), ("derived alpha", 0.001), ("derived", {}),
        ("evidence votes", lambda rows: [*rows[:-1], [rows[-1][0] + 50, rows[-1][1]]]),
        ("evidence votes", lambda rows: [*rows[:-1], rows[-1][::-1]]), ("evidence votes", []), ("evidence votes", 5),
        ("evidence votes", [[1.5, 2]]), ("evidence votes", lambda rows: [*rows[:-1], [-1, sum(rows[-1]) + 1]]),
        ("evidence votes", lambda rows: [[float(count) for count in row] for row in rows]),
        ("evidence selection", lambda counts: counts[::-1]), ("evidence selection", [0, 0]),
        ("evidence selection", [1]),
        ("evidence selection", lambda counts: [2 * count for count in counts]),
        ("evidence copies", [[]]), ("evidence copies", [[1], [1]]), ("evidence tokens", '["a"]'),
        ("evidence look_sizes", [10]), ("evidence look_sizes", []), ("evidence look_alphas", [2]),
        ("evidence look_alphas", lambda levels: levels[::-1]),
        ("evidence look_alphas", lambda levels: [2 * level for level in levels]),
        ("label", lambda label: {"pos": "neg", "neg": "pos"}[label]), ("label", 0), ("classes", None),
        ("classes", ["neg", "pos", "odd"]), ("classes", ["neg"]), ("length", -1), ("length", "5"), ("length", 10**60),
        ("length", lambda length: length + 400), ("input_hash", "\x1b[31m"), ("unit", 5), ("unit", {"kind": "none"}),
        ("plan", {}), ("plan kind", "scores"), ("plan kind", "none"), ("plan alpha", 0.01), ("plan alpha", "0.05"),
        ("plan threshold", float("nan")), ("plan threshold", 2.0), ("plan bound", "nonsense"), ("plan seed", -1),
        ("plan n_select", 500), ("plan n_select", True), ("plan n_estimate", 601), ("plan sampling", "fixed"),
        ("plan noise", {"kind": "masking", "fraction": 0.9}), ("plan noise", {"kind": "random deletion", "low": 0.7}),
        ("plan noise rate p_min", 0.99), ("plan threat ops", ["teleport"]), ("plan threat", ["del"]),
        ("plan sampled", 3), ("plan sampled", {"kind": "scores"}), ("format", 1), ("format", 3), ("model_hash", None),
    ],
    ids=lambda value: "changed" if callable(value) else repr(value),
)  # fmt: skip
def test_what_was_changed_is_caught(sampled: Values, path: str, value: Any) -> None:
    """Although the forger knows how the digest is made."""
    wrong = verify(forged(sampled, {tuple(path.split()): value}))
    assert wrong
    assert all(isinstance(sentence, str) and "\n" not in sentence for sentence in wrong)


@pytest.mark.parametrize("values", [None, [], 3, {}, {"format": 2}, {"format": 2, "plan": 7}])
def test_nonsense_is_not_a_certificate(values: Any) -> None:
    assert verify(values)


def test_a_plan_that_follows_another_differs_in_what_radii_follow_from() -> None:
    """Not in what the votes were taken by, or their noise could be replaced by one with larger radii."""
    other = next(c for c in certificates() if c.radius > 0).rederive(alpha=0.01).to_dict()
    assert verify(other) == []
    for path, value in (
        ("noise", Deletion(FixedRate(0.99)).to_dict()), ("n_estimate", 10**6), ("threshold", 0.5), ("sampled", None)
    ):  # fmt: skip
        assert verify(forged(other, {("plan", path): value}))
    assert verify(forged(other, {("plan", "sampled", "sampled"): other["plan"]["sampled"]}))


def rewritten(certificate: Certificate, label: Any = None, **changes: Any) -> Certificate:
    """What a forger writes: evidence changed, then everything derived again, the digest included."""
    label = certificate.label if label is None else label
    return replace(certificate, label=label, evidence=replace(votes_of(certificate), **changes))


def test_enumerated_copies_cannot_be_left_out() -> None:
    model = SmoothedClassifier(by_size, Deletion(FixedRate(0.8)), classes=["a", "b", "c"])
    honest = model.certify(["1 2 3 4 5 6 7 8 9"])[0]
    copies = votes_of(honest).copies
    assert copies is not None
    assert verify(honest.to_dict()) == []
    fewer = tuple(tuple(0 if size in (1, 3) else count for size, count in enumerate(row)) for row in copies)
    assert verify(rewritten(honest, copies=fewer).to_dict()) == ["the enumerated copies are not all there are"]
    other = 1 - honest.answer
    wrong = verify(rewritten(honest, answer=other, label=honest.classes[other]).to_dict())
    assert wrong == ["the label is not the likeliest class of the enumerated copies"]


def test_a_long_input_is_not_believed_to_be_enumerated() -> None:
    honest = SmoothedClassifier(by_size, NOISE, classes=["a", "b"]).certify(["1 2 3 4 5 6 7"])[0]
    rows = tuple(tuple(1 for _ in range(401)) for _ in range(2))
    assert verify(rewritten(honest, length=400, copies=rows).to_dict()) == [
        "an input of 400 tokens has too many copies to be enumerated under its noise"
    ]


def test_classes_that_repeat_a_label() -> None:
    given = certificates(base=first_word, classes=[*WORDS, ""], sampling="fixed")
    whole = next(c for c in given if votes_of(c).copies is None)
    assert verify(whole.to_dict()) == []
    split = replace(whole, classes=(*whole.classes[:-1], whole.classes[0])).to_dict()
    assert verify(split) == ['classes must differ from each other, got the label "good" more than once']


def test_labels_are_compared_as_json_is() -> None:
    assert check_classes([1, True, 1.0, "1", None, [1]]) == [1, True, 1.0, "1", None, [1]]
    assert label_key((1, 2)) == label_key([1, 2])
    for classes in ([1, 1], [True, True], ["a", "b", "a"], [None, None], []):
        with pytest.raises(ValueError, match="classes must"):
            check_classes(classes)
    with pytest.raises(ValueError, match="a label must be"):
        check_classes([float("nan"), 1])


@pytest.mark.parametrize(
    "noise", [Deletion(FixedRate(1.0)), NoNoise(), Deletion(FixedRate(0.0)), Masking(1.0), Masking(0.0)], ids=repr
)
def test_equal_copies_vote_alike(noise: Noise) -> None:
    """The noise leaves nothing to chance: a split vote was invented."""
    certificate = certificates(3, noise=noise, sampling="fixed", ops="sub", n_estimate=200)[-1]
    assert certificate.length > 0
    assert verify(certificate.to_dict()) == []
    counts = list(votes_of(certificate).votes[0])
    counts[certificate.answer] -= 1
    counts[1 - certificate.answer] += 1
    [sentence] = verify(rewritten(certificate, votes=(tuple(counts),)).to_dict())
    assert sentence.startswith("the votes must be unanimous")


ABSURD: list[tuple[Noise, Values]] = [
    (Deletion(LengthRate(0.7, 6)), {}),
    (Deletion(LengthRate(0.7, 6)), {"bound": "paper"}),
    (Deletion(FixedRate(0.999999999)), {"threat": {"ops": ["del"]}}),
    (Deletion(LengthRate(0.5, 2.4e12)), {}),
    (Masking(0.999999999), {"threat": {"ops": ["sub"]}}),
    (Deletion(LengthRate(0.7, 6)), {"threshold": 0.3}),
]


@pytest.mark.parametrize(("noise", "others"), ABSURD)
def test_absurd_lengths_are_given_up(sampled: Values, noise: Noise, others: Values) -> None:
    length = 5 * 10**12
    changes: dict[tuple[str, ...], Any] = {("length",): length, ("plan", "noise"): noise.to_dict()}
    changes |= {("plan", name): value for name, value in others.items()}
    start = time.process_time()
    wrong = verify(forged(sampled, changes), work=2 * 10**6)
    assert time.process_time() - start < 20  # seconds of this process; it was minutes or more
    assert any(f"not checked: to derive it again for {length} tokens" in each or "radius" in each for each in wrong)


def test_absurd_votes_are_given_up(sampled: Values) -> None:
    votes = 2**39
    changes: dict[tuple[str, ...], Any] = {
        ("plan", "n_select"): votes, ("plan", "n_estimate"): 2 * votes, ("plan", "sampling"): "fixed",
        ("plan", "enumerates"): False, ("derived", "p1"): 0.49999, ("derived", "p2"): 0.51,
        ("evidence", "selection"): [0, votes] if sampled["label"] == "pos" else [votes, 0],
        ("evidence", "look_sizes"): [2 * votes], ("evidence", "look_alphas"): [0.05],
        ("evidence", "votes"): [[votes, votes]],
    }  # fmt: skip
    start = time.process_time()
    [sentence] = verify(forged(sampled, changes))
    assert time.process_time() - start < 20
    assert sentence.startswith("not checked")
    assert "--work" in sentence


def test_long_texts_are_not_absurd() -> None:
    """Ten thousand tokens are checked, under the paper's bound too."""
    noise = Deletion(LengthRate(0.9, 23))
    plan = VotesPlan(noise=noise, sampling="fixed", n_select=100, n_estimate=4000, enumerates=False)
    evidence = Votes(1, 10_000, (0, 100), Looks.fixed(4000, 0.05), ((2, 3998),))
    certificate = Certificate("pos", ("neg", "pos"), plan, evidence)
    assert certificate.radius > 100
    assert verify(certificate.to_dict()) == []
    paper = replace(certificate, plan=replace(plan, bound="paper"))
    assert verify(rewritten(paper, length=1000).to_dict()) == []
