"""Certificates that others made: what holds is proven, what was changed is caught."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptdel import (
    ContentDeletion,
    Deletion,
    FixedRate,
    LengthRate,
    Masking,
    NoNoise,
    register_noise,
)
from adaptdel.certification.certificate import Certificate, check_classes, digest, label_key
from adaptdel.certification.verify import verify
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.confidence import Looks
from adaptdel.core.noise import ExactOverlap, Noise, Overlap
from adaptdel.models.smoothed import SmoothedClassifier
from tests.models.test_smoothed import WORDS, by_size, by_words, first_word, texts
from tests.run_files import run

Values = dict[str, Any]
NOISE = Deletion(FixedRate(0.9))
TEXT = " ".join(f"word{number}" for number in range(50))


def certificates(count: int = 8, **settings: Any) -> list[Certificate]:
    defaults: Values = {"classes": ["neg", "pos"], "n_estimate": 600, "noise": Deletion(LengthRate(0.7, 6))}
    settings = defaults | settings
    return SmoothedClassifier(settings.pop("base", by_words), **settings).certify(texts(count, seed=4))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sampling": "fixed"},
        {"noise": Masking(0.7)},
        {"threshold": 0.3},
        {"bound": "paper"},
        {"ops": ("ins",)},
        {"base": first_word, "classes": [*WORDS, ""]},
    ],
)
def test_what_holds_is_proven(settings: Values) -> None:
    for certificate in certificates(12, **settings):
        assert verify(certificate.to_dict()) == []
        assert verify(json.loads(certificate.to_json())) == []


def test_other_derivations_hold_too() -> None:
    for certificate in certificates(12):
        for other in (certificate.rederive(alpha=0.001), certificate.rederive(ops=["del"], bound="paper")):
            assert verify(other.to_dict()) == []
        assert certificate.rederive(alpha=0.001).radius <= certificate.radius
        assert certificate.radius_for(["sub"]) >= certificate.radius
        assert certificate.rederive(alpha=0.5).radius >= certificate.radius
        if certificate.radius >= 0:
            assert certificate.frontier()
            assert certificate.log10_cardinality() >= 0


class Praised(ContentDeletion):
    """A rate that depends on the content."""

    kind = "praised"

    def rate_of(self, tokens: tuple[Any, ...]) -> float:
        return 0.7 if "good" in tokens else 0.8


def test_at_a_threshold_of_1_a_search_ends_where_it_does_otherwise() -> None:
    noise = register_noise("praised")(Praised)(vocabulary=("good", "bad"), max_radius=1)
    model = SmoothedClassifier(by_words, noise, classes=["neg", "pos"], threshold=1.0, n_estimate=100)
    certificate = model.certify(["a film"])[0]
    assert certificate.radius == 1
    assert verify(certificate.to_dict()) == []


@pytest.fixture(scope="module")
def sampled() -> Values:
    """A certificate of two classes with a radius."""
    return next(c.to_dict() for c in certificates() if c.exact is None and c.radius > 0)


def forged(values: Values, change: Callable[[Values], object]) -> Values:
    """A forger who knows how the digest is made."""
    values = deepcopy(values)
    change(values)
    values["digest"] = digest(values)
    return values


FORGERIES: dict[str, Callable[[Values], object]] = {
    "radius raised": lambda values: values["derived"].update(radius=values["derived"]["radius"] + 1),
    "radius lowered": lambda values: values["derived"].update(radius=-1),
    "p1 raised": lambda values: values["derived"].update(p1=min(values["derived"]["p1"] + 0.01, 1.0)),
    "p1 lowered": lambda values: values["derived"].update(p1=values["derived"]["p1"] - 0.01),
    "p2 lowered": lambda values: values["derived"].update(p2=1e-6),
    "alpha lowered": lambda values: values["derived"].update(alpha=0.001),
    "votes added": lambda values: values["votes"][-1].__setitem__(0, values["votes"][-1][0] + 50),
    "votes moved": lambda values: values["votes"][-1].reverse(),
    "votes negative": lambda values: values["votes"][-1].__setitem__(0, -1),
    "votes dropped": lambda values: values.update(votes=[]),
    "another label": lambda values: values.update(label=values["classes"][1 - values["answer"]]),
    "rate raised": lambda values: values["noise"]["rate"].update(p_min=0.99),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_was_changed_is_caught(forgery: str) -> None:
    """Also if the forger knows how the digest is made."""
    for certificate in certificates(12):
        values = certificate.to_dict()
        if values["exact"] is None and values["derived"]["radius"] > 0:
            assert forgery == "rate raised" or verify(forged(values, FORGERIES[forgery]))
            FORGERIES[forgery](values)
            assert verify(values)


@pytest.mark.parametrize("values", [None, [], 3, {}, {"format": 2}, {"format": 1, "looks": 7}])
def test_nonsense_is_not_a_certificate(values: Any) -> None:
    assert verify(values)


def rewritten(certificate: Certificate, **changes: Any) -> dict[str, Any]:
    """What a forger writes: fields changed, then everything derived anew, the digest included."""
    return replace(certificate, **changes).to_dict()


def test_enumerated_copies_cannot_be_left_out() -> None:
    model = SmoothedClassifier(by_size, Deletion(FixedRate(0.8)), classes=["a", "b", "c"])
    honest = model.certify(["1 2 3 4 5 6 7 8 9"])[0]
    assert honest.exact is not None
    assert verify(honest.to_dict()) == []
    fewer = tuple(tuple(0 if size in (1, 3) else count for size, count in enumerate(row)) for row in honest.exact)
    assert verify(rewritten(honest, exact=fewer)) == ["the enumerated copies are not all there are"]
    other = 1 - honest.answer
    wrong = verify(rewritten(honest, answer=other, label=honest.classes[other]))
    assert wrong == ["the label is not the likeliest class of the enumerated copies"]


@register_noise("neighbours_masked")
@dataclass(frozen=True)
class NeighboursMasked(Noise):
    """Masks two neighbouring tokens: not every choice of that many tokens occurs."""

    masks_tokens = True
    certified_ops = ("sub",)

    def draw_rows(self, length: int, size: int, rng: np.random.Generator) -> BoolArray:
        return self.all_choices(length)[rng.integers(0, length - 1, size)]

    def share_removed(self, length: int) -> float:
        return 2 / length

    def overlap(self, length: int, other_length: IntArray, common: IntArray) -> Overlap:
        unchanged = (common == length).astype(np.float64)
        return Overlap.alike(unchanged, unchanged, common)

    def exact_overlap(self, number: Callable[[int], Any], length: int, other_length: int, common: int) -> ExactOverlap:
        return ExactOverlap(*[number(int(common == length))] * 2)

    def choices(self, length: int) -> int:
        return length - 1

    def all_choices(self, length: int) -> BoolArray:
        starts, places = np.arange(length - 1)[:, None], np.arange(length)
        return np.asarray((places != starts) & (places != starts + 1))

    def choice_weights(self, length: int) -> list[Fraction]:
        return [Fraction(int(kept == length - 2), length - 1) for kept in range(length + 1)]


def test_an_own_noise_says_which_copies_there_are() -> None:
    honest = SmoothedClassifier(by_size, NeighboursMasked(), classes=["a", "b", "c"]).certify(["1 2 3 4 5 6"])[0]
    assert honest.exact is not None
    assert verify(honest.to_dict()) == []
    fewer = tuple(tuple(max(count - 1, 0) for count in row) for row in honest.exact)
    assert verify(rewritten(honest, exact=fewer)) == ["the enumerated copies are not all there are"]


def test_a_long_input_is_not_believed_to_be_enumerated() -> None:
    honest = SmoothedClassifier(by_size, NOISE, classes=["a", "b"]).certify(["1 2 3 4 5 6 7"])[0]
    rows = tuple(tuple(1 for _ in range(401)) for _ in range(2))
    assert verify(rewritten(honest, length=400, exact=rows)) == [
        "an input of 400 tokens has too many copies to be enumerated under its noise"
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"k": 2}, {"threshold": float("nan")}, {"threshold": 2.0},
        {"bound": "nonsense"}, {"length": -1}, {"length": "5"}, {"length": 10**60}, {"answer": "0"}, {"answer": 7},
        {"votes": 5}, {"votes": [[1.5, 2]]}, {"exact": [[]]}, {"classes": None}, {"selection": [1]}, {"seed": -1},
        {"noise": {"kind": "masking", "fraction": 0.9}}, {"noise": {"kind": "random deletion", "low": 0.7}},
        {"looks": {"sizes": [10], "alphas": [2]}}, {"looks": None}, {"ops": ["teleport"]}, {"derived": {}},
        {"derived": {"radius": float("inf"), "p1": 1, "p2": 0, "alpha": 0.05}},
        {"derived": {"radius": 5.9, "p1": 1, "p2": 0, "alpha": 0.05}},
    ],
    ids=repr,
)  # fmt: skip
def test_nonsense_in_a_certificate_is_said_not_raised(changes: dict[str, Any]) -> None:
    honest = SmoothedClassifier(by_size, NOISE, classes=["a", "b"]).certify([TEXT])[0].to_dict()
    assert verify(honest) == []
    wrong = verify(honest | changes)
    assert wrong
    assert all(isinstance(sentence, str) for sentence in wrong)


def test_the_selection_votes_have_to_choose_the_label() -> None:
    honest = SmoothedClassifier(by_size, NOISE, classes=["a", "b"]).certify([TEXT])[0]
    other = tuple(reversed(honest.selection))
    assert verify(rewritten(honest, selection=other)) == ["the selection votes did not choose the label"]
    assert verify(rewritten(honest, selection=(0, 0))) == ["the selection votes did not choose the label"]


def test_classes_that_repeat_a_label() -> None:
    whole = next(c for c in certificates(base=first_word, classes=[*WORDS, ""], sampling="fixed") if c.exact is None)
    assert verify(whole.to_dict()) == []
    split = replace(whole, classes=(*whole.classes[:-1], whole.classes[0])).to_dict()
    [sentence] = verify(split)
    assert sentence == 'classes must differ from each other, got the label "good" more than once'
    with pytest.raises(ValueError, match="classes must differ"):
        Certificate.from_dict(split)


def test_labels_are_compared_as_json_is() -> None:
    assert check_classes([1, True, 1.0, "1", None, [1]]) == [1, True, 1.0, "1", None, [1]]
    assert label_key((1, 2)) == label_key([1, 2])
    for classes in ([1, 1], [True, True], ["a", "b", "a"], [None, None], []):
        with pytest.raises(ValueError, match="classes must"):
            check_classes(classes)
    with pytest.raises(ValueError, match="a label must be"):
        check_classes([float("nan"), 1])
    certificate = next(c for c in certificates() if c.exact is None)
    sampled = replace(certificate, classes=(0, 1), label=certificate.answer).to_dict()
    assert verify(sampled) == []
    other = {0: False, 1: True}[sampled["label"]]
    assert verify(forged(sampled, lambda values: values.update(label=other)))
    assert verify(forged(sampled, lambda values: values.update(label=float(other))))


@pytest.mark.parametrize("where", [(), ("derived",), ("looks",), ("noise",), ("noise", "rate"), ("unit",)])
@pytest.mark.parametrize("value", [1, None, "checked by experts"])
def test_unknown_fields(sampled: Values, where: tuple[str, ...], value: Any) -> None:
    def add(values: Values) -> None:
        for name in where:
            values = values[name]
        values["note"] = value

    [sentence] = verify(forged(sampled, add))
    assert "note" in sentence


def test_fields_that_are_missing(sampled: Values) -> None:
    for name in sampled:
        values = deepcopy(sampled)
        del values[name]
        assert verify(values) == [f"a certificate must have the field {name!r}, which is missing"]
    for part in ("derived", "looks"):
        for name in sampled[part]:
            wrong = verify(forged(sampled, lambda values, part=part, name=name: values[part].pop(name)))  # type: ignore[misc]
            assert wrong == [f"{part} must have the field {name!r}, which is missing"]


@pytest.mark.parametrize(
    "noise", [Deletion(FixedRate(1.0)), NoNoise(), Deletion(FixedRate(0.0)), Masking(1.0), Masking(0.0)], ids=repr
)
def test_equal_copies_vote_alike(noise: Noise) -> None:
    """The noise leaves nothing to chance: a split vote was invented."""
    ops = "sub" if isinstance(noise, Masking) else "ins"
    certificate = certificates(3, noise=noise, sampling="fixed", ops=ops, n_estimate=200)[-1]
    assert certificate.length > 0
    assert verify(replace(certificate, ops=("sub",)).to_dict()) == []
    counts = list(certificate.votes[0])
    counts[certificate.answer] -= 1
    counts[1 - certificate.answer] += 1
    split = replace(certificate, votes=(tuple(counts),), ops=("sub",))
    [sentence] = verify(split.to_dict())
    assert sentence.startswith("the votes must be unanimous")


ABSURD: list[tuple[Noise, Values]] = [
    (Deletion(LengthRate(0.7, 6)), {}),
    (Deletion(LengthRate(0.7, 6)), {"bound": "paper"}),
    (Deletion(FixedRate(0.999999999)), {"ops": ("del",)}),
    (Deletion(LengthRate(0.5, 2.4e12)), {}),
    (Masking(0.999999999), {"ops": ("sub",)}),
    (Deletion(LengthRate(0.7, 6)), {"threshold": 0.3}),
]


@pytest.mark.parametrize(("noise", "others"), ABSURD)
@pytest.mark.parametrize("length", [5 * 10**12])
def test_absurd_lengths_are_given_up(sampled: Values, noise: Noise, others: Values, length: int) -> None:
    def change(values: Values) -> None:
        values.update(length=length, noise=noise.to_dict(), **others)

    start = time.process_time()
    wrong = verify(forged(sampled, change), work=2 * 10**6)
    assert time.process_time() - start < 20  # seconds of this process; it was minutes or more
    assert len(wrong) == 1
    assert f"not checked: to derive it again for {length} tokens" in wrong[0] or "radius" in wrong[0]


def test_absurd_votes_are_given_up(sampled: Values) -> None:
    votes = 2**39

    def change(values: Values) -> None:
        values["looks"] = {"sizes": [2 * votes], "alphas": [values["derived"]["alpha"]]}
        values["votes"] = [[votes, votes]]
        values["derived"].update(p1=0.49999, p2=0.51)

    start = time.process_time()
    [sentence] = verify(forged(sampled, change))
    assert time.process_time() - start < 20
    assert sentence.startswith("not checked")
    assert "--work" in sentence


def test_long_texts_are_not_absurd() -> None:
    """Ten thousand tokens are checked, under the paper's bound too."""
    looks = Looks.fixed(4000, 0.05)
    certificate = replace(
        certificates(1)[0], length=10_000, selection=(0, 100), answer=1, label="pos", looks=looks,
        votes=((2, 3998),), exact=None, noise=Deletion(LengthRate(0.9, 23)),
    )  # fmt: skip
    assert certificate.radius > 100
    assert verify(certificate.to_dict()) == []
    assert verify(replace(certificate, length=1000, bound="paper").to_dict()) == []


def test_a_large_alpha_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "certificates.json"
    for alpha, said in ((0.05, False), (0.2, True)):
        file.write_text(json.dumps([c.to_dict() for c in certificates(alpha=alpha)]))
        assert run("verify", file) == 0
        assert ("note: alpha is up to 0.2, more than the usual 0.05" in capsys.readouterr().err) == said
    assert run("verify", file, "--json") == 0
    assert json.loads(capsys.readouterr().out)["largest_alpha"] == pytest.approx(0.2)
