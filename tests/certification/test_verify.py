"""Certificates that others made: what holds is proven, what was changed is caught."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adaptdel import Deletion, LengthRate, Masking
from adaptdel.certification.certificate import Certificate, digest
from adaptdel.certification.verify import verify
from adaptdel.cli import main
from adaptdel.smoothed import SmoothedClassifier
from tests.test_smoothed import WORDS, by_words, first_word, texts

ADAPTDEL = Deletion(LengthRate(0.7, 6))


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
        {"base": first_word, "classes": None},
        {"base": first_word, "classes": [*WORDS, ""], "k": 2},
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
