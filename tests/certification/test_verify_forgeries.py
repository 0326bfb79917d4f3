"""What verify must not let pass in a certificate: claims, fields and files that nobody vouches for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptdel import Deletion, FixedRate, LengthRate, Masking, NoNoise
from adaptdel.certification.certificate import Certificate, check_classes, digest, label_key
from adaptdel.certification.verify import verify
from adaptdel.core.confidence import Looks
from adaptdel.core.noise import Noise
from adaptdel.models.smoothed import SmoothedClassifier
from tests.models.test_smoothed import WORDS, by_words, first_word, texts
from tests.run_files import run

Values = dict[str, Any]


def certificates(count: int = 8, **settings: Any) -> list[Certificate]:
    defaults: Values = {"classes": ["neg", "pos"], "n_estimate": 600, "noise": Deletion(LengthRate(0.7, 6))}
    settings = defaults | settings
    return SmoothedClassifier(settings.pop("base", by_words), **settings).certify(texts(count, seed=4))


@pytest.fixture(scope="module")
def sampled() -> Values:
    """A certificate of two classes with a radius."""
    return next(c.to_dict() for c in certificates() if c.exact is None and c.radius > 0)


def forged(values: Values, change: Callable[[Values], None]) -> Values:
    """A forger who knows how the digest is made."""
    values = deepcopy(values)
    change(values)
    values["digest"] = digest(values)
    return values


# Certificates


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


def test_the_second_probability_of_two_classes(sampled: Values) -> None:
    [sentence] = verify(forged(sampled, lambda values: values["derived"].update(p2=1e-6)))
    assert sentence == "the upper bound 1e-06 does not follow from the votes"


@pytest.mark.parametrize("where", [(), ("derived",), ("looks",), ("noise",), ("noise", "rate"), ("unit",)])
@pytest.mark.parametrize("value", [1, None, "checked by experts"])
def test_unknown_fields(sampled: Values, where: tuple[str, ...], value: Any) -> None:
    def add(values: Values) -> None:
        for name in where:
            values = values[name]
        values["note"] = value

    [sentence] = verify(forged(sampled, add))
    assert "note" in sentence


@pytest.mark.parametrize("value", [None, True, 7, -1.5, float("nan"), "x", [], [None], {}, {"kind": 3}], ids=repr)
def test_fields_of_a_wrong_type(sampled: Values, value: Any) -> None:
    fine = {"exact": None, "threshold": None, "unit": None, "seed": 7, "length": 7, "model_hash": "x", "known": True}
    for name in sampled:
        is_fine = (name in fine and fine[name] is value) or (name == "seed" and value is None)  # a secret seed
        if name != "digest" and not is_fine:
            wrong = verify(forged(sampled, lambda values, name=name: values.update({name: value})))  # type: ignore[misc]
            assert len(wrong) == 1, name
            assert "\n" not in wrong[0]
    for name in sampled["derived"]:
        wrong = verify(forged(sampled, lambda values, name=name: values["derived"].update({name: value})))  # type: ignore[misc]
        assert len(wrong) == 1, name


def test_fields_that_are_missing(sampled: Values) -> None:
    for name in sampled:
        values = deepcopy(sampled)
        del values[name]
        assert verify(values) == [f"a certificate must have the field {name!r}, which is missing"]
    for part in ("derived", "looks"):
        for name in sampled[part]:
            wrong = verify(forged(sampled, lambda values, part=part, name=name: values[part].pop(name)))  # type: ignore[misc]
            assert wrong == [f"{part} must have the field {name!r}, which is missing"]


@pytest.mark.parametrize("alpha", [float("nan"), -0.1, 1.0, 5, None, "0.05", True])
def test_alpha_out_of_range(sampled: Values, alpha: Any) -> None:
    assert "alpha must be in" in verify(forged(sampled, lambda values: values["derived"].update(alpha=alpha)))[0]
    assert verify(
        forged(sampled, lambda values: values["looks"].update(alphas=[alpha] * len(values["looks"]["sizes"])))
    )


@pytest.mark.parametrize("unit", [5, [], "word", {}, {"kind": "nonsense"}, {"kind": "chunk", "size": True}])
def test_units_of_a_wrong_type(sampled: Values, unit: Any) -> None:
    assert len(verify(forged(sampled, lambda values: values.update(unit=unit)))) == 1


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


def test_an_empty_input_votes_alike() -> None:
    [certificate] = SmoothedClassifier(
        by_words, Deletion(FixedRate(0.5)), classes=["neg", "pos"], sampling="fixed", n_estimate=200
    ).certify([""])
    assert verify(certificate.to_dict()) == []
    counts = list(certificate.votes[0])
    counts[certificate.answer], counts[1 - certificate.answer] = 199, 1
    assert verify(replace(certificate, votes=(tuple(counts),)).to_dict())


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"format": 1, "format": 1}', "the field 'format' is repeated"),
        ('{"format": NaN}', "a number must be finite, got NaN"),
        ('{"format": -Infinity}', "a number must be finite, got -Infinity"),
        ('{"format": 1e999}', "a number must be finite, got 1e999"),
        ('{"format": ' + "9" * 5000 + "}", "an integer must have at most 64 digits, got 5000"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 40 + "]" * 40, "nested too deeply"),
        ('{"format":', "not JSON: Expecting value (line 1, column 11)"),
    ],
)
@pytest.mark.parametrize("shape", ["{}", "{}\n{{}}", "[\n{}\n]"])
def test_json_that_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str, shape: str
) -> None:
    file = tmp_path / "certificates.json"
    file.write_text(shape.format(text))
    assert run("verify", file) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(file) in error
    assert words in error or "not JSON" in words


def test_a_large_alpha_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "certificates.json"
    for alpha, said in ((0.05, False), (0.2, True)):
        file.write_text(json.dumps([c.to_dict() for c in certificates(alpha=alpha)]))
        assert run("verify", file) == 0
        assert ("note: alpha is up to 0.2, more than the usual 0.05" in capsys.readouterr().err) == said
    assert run("verify", file, "--json") == 0
    assert json.loads(capsys.readouterr().out)["largest_alpha"] == pytest.approx(0.2)
