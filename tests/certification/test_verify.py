"""Certificates that others made: what holds is proven, what was changed is caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adaptdel import Deletion, FixedRate, LengthRate, Masking
from adaptdel.certification.certificate import Certificate, digest
from adaptdel.certification.verify import verify
from adaptdel.cli import main
from adaptdel.models.smoothed import SmoothedClassifier
from tests.models.test_smoothed import WORDS, by_size, by_words, first_word, texts

ADAPTDEL = Deletion(LengthRate(0.7, 6))
NOISE = Deletion(FixedRate(0.9))
TEXT = " ".join(f"word{number}" for number in range(50))


def certificates(**settings: Any) -> list[dict[str, Any]]:
    defaults: dict[str, Any] = {"classes": ["neg", "pos"], "n_estimate": 600, "noise": ADAPTDEL}
    settings = defaults | settings
    base = settings.pop("base", by_words)
    return [c.to_dict() for c in SmoothedClassifier(base, **settings).certify(texts(12, seed=4))]


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
def test_what_holds_is_proven(settings: dict[str, Any]) -> None:
    for values in certificates(**settings):
        assert verify(values) == []
        assert verify(json.loads(json.dumps(values))) == []


def test_other_derivations_hold_too() -> None:
    for values in certificates():
        certificate = Certificate.from_dict(values)
        for other in (certificate.rederive(alpha=0.001), certificate.rederive(ops=["del"], bound="paper")):
            assert verify(other.to_dict()) == []
        assert certificate.rederive(alpha=0.001).radius <= certificate.radius
        assert certificate.radius_for(["sub"]) >= certificate.radius
        assert certificate.rederive(alpha=0.5).radius >= certificate.radius
        if certificate.radius >= 0:
            assert certificate.frontier()
            assert certificate.log10_cardinality() >= 0


def resigned(change: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """A forger who knows how the digest is made."""

    def forge(values: dict[str, Any]) -> None:
        change(values)
        values["digest"] = digest(values)

    return forge


def raise_radius(values: dict[str, Any]) -> None:
    values["derived"]["radius"] += 1


def lower_radius(values: dict[str, Any]) -> None:
    values["derived"]["radius"] = -1


def lower_probability(values: dict[str, Any]) -> None:
    values["derived"]["p1"] -= 0.01


def raise_probability(values: dict[str, Any]) -> None:
    values["derived"]["p1"] = min(values["derived"]["p1"] + 0.01, 1.0)


def lower_alpha(values: dict[str, Any]) -> None:
    values["derived"]["alpha"] = 0.001


def add_votes(values: dict[str, Any]) -> None:
    values["votes"][-1][values["answer"]] += 50


def move_votes(values: dict[str, Any]) -> None:
    values["votes"][-1] = values["votes"][-1][::-1]


def other_label(values: dict[str, Any]) -> None:
    values["label"] = values["classes"][1 - values["answer"]]


def negative_votes(values: dict[str, Any]) -> None:
    values["votes"][-1][0] = -1


def drop_votes(values: dict[str, Any]) -> None:
    values["votes"] = []


def higher_rate(values: dict[str, Any]) -> None:
    values["noise"]["rate"]["p_min"] = 0.99


FORGERIES = [
    raise_radius,
    raise_probability,
    lower_radius,
    lower_probability,
    lower_alpha,
    add_votes,
    move_votes,
    other_label,
    negative_votes,
    drop_votes,
]


@pytest.mark.parametrize("forge", [*FORGERIES, *map(resigned, FORGERIES), higher_rate], ids=lambda f: f.__qualname__)
def test_what_was_changed_is_caught(forge: Callable[[dict[str, Any]], None]) -> None:
    for values in certificates():
        if values["exact"] is None and values["derived"]["radius"] > 0:
            forge(values)
            assert verify(values)


@pytest.mark.parametrize("values", [None, [], 3, {}, {"format": 2}, {"format": 1, "looks": 7}])
def test_nonsense_is_not_a_certificate(values: Any) -> None:
    assert verify(values)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(text: str) -> tuple[int, str, str]:
        file = tmp_path / "certificates.jsonl"
        file.write_text(text)
        with pytest.raises(SystemExit) as stop:
            main(["verify", str(file)])
        captured = capsys.readouterr()
        assert isinstance(stop.value.code, int)
        return stop.value.code, captured.out, captured.err

    rows = certificates()
    assert run("\n".join(map(json.dumps, rows)))[:2] == (0, "12 of 12 certificates hold, proven in ball arithmetic\n")
    assert run(json.dumps(rows))[0] == 0
    rows[3]["derived"]["radius"] += 1
    status, out, _ = run("\n".join(map(json.dumps, rows)))
    assert status == 1
    assert out.startswith("line 4: does not hold: the digest does not fit")
    status, out, err = run('{"format": 1}\nnonsense\n')
    assert (status, err.count("\n")) == (2, 1)
    assert "line 2: must be one JSON certificate per line" in err
    assert run("")[0] == 2


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


def test_honest_certificates_that_were_refused() -> None:
    model = SmoothedClassifier(
        lambda copies: ["no"] * len(copies), NOISE, classes=["no", "yes"], threshold=0.7, bound="paper"
    )
    assert verify(model.certify(["a b c d e"])[0].to_dict()) == []


def test_certificates_with_odd_line_ends_are_read(tmp_path: Path, capsys: Any) -> None:
    model = SmoothedClassifier(lambda copies: ["a\u2028b"] * len(copies), NOISE, classes=["a\u2028b", "\x85"])
    lines = [certificate.to_json() for certificate in model.certify([TEXT, TEXT + " more"])]
    (tmp_path / "c.jsonl").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    (tmp_path / "none.json").write_text("[]")
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(tmp_path / "c.jsonl")])
    assert not stop.value.code
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(tmp_path / "none.json")])
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith("none.json: holds no certificate\n")
