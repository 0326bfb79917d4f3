"""What reviewers found once, so that it is not found twice."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel import Certificate, Deletion, FixedRate, LengthRate, Masking, SmoothedClassifier
from adaptdel.certification.verify import verify
from adaptdel.classifiers import CallableClassifier
from adaptdel.classifiers.base import BaseClassifierError, Request
from adaptdel.cli import main
from adaptdel.units import Words

NOISE = Deletion(FixedRate(0.9))
TEXT = " ".join(f"word{number}" for number in range(50))


def rewritten(certificate: Certificate, **changes: Any) -> dict[str, Any]:
    """What a forger writes: fields changed, then everything derived anew, the digest included."""
    return replace(certificate, **changes).to_dict()


def by_size(copies: list[str]) -> list[str]:
    return ["b" if len(copy.split()) in (1, 3) else "a" for copy in copies]


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
        {"k": 0}, {"k": 2}, {"k": "1"}, {"k": True}, {"known": "no"}, {"threshold": float("nan")}, {"threshold": 2.0},
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
    seen = SmoothedClassifier(lambda copies: ["a"] * len(copies), NOISE, k=5).certify([TEXT])[0]
    assert verify(seen.to_dict()) == []
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


def test_masking_models_survive_saving(tmp_path: Path) -> None:
    votes: Any = np.int64(100)
    model = SmoothedClassifier(noise=Masking(0.8), n_select=votes).fit([TEXT, "a b c " * 9] * 5, [0, 1] * 5)
    model.save(tmp_path / "m")
    loaded = SmoothedClassifier.load(tmp_path / "m")
    assert loaded.certify([TEXT])[0].to_dict() == model.certify([TEXT])[0].to_dict()


def test_short_texts_keep_a_word() -> None:
    assert LengthRate.from_lengths([4, 5], 0.9) == LengthRate(0.9, 1)
    model = SmoothedClassifier().fit(["cheap pills", "lunch today"] * 20, ["spam", "ham"] * 20)
    assert model.certify(["cheap pills now please"])[0].radius < 100


def test_a_scoring_function_that_rejects_long_inputs() -> None:
    def limited(copies: list[str]) -> Any:
        if max(map(len, copies)) > 200:
            raise ValueError("too long")
        return np.array([[0.1, 0.9]] * len(copies))

    assert SmoothedClassifier(limited, NOISE).certify([TEXT])[0].label == 1


def test_a_pipeline_leaves_the_model_alone() -> None:
    model = SmoothedClassifier(by_size, NOISE, classes=["a", "b"])
    assert ad.pipeline(model, alpha=0.2).model.alpha == 0.2
    assert model.alpha == 0.05
    with pytest.raises(ValueError, match=r"^noise must be None for a model that is smoothed already, got Deletion"):
        ad.pipeline(model, noise=NOISE)


def test_shares_of_unknown_classes_do_not_depend_on_the_order() -> None:
    texts = [" ".join(f"w{i}" for i in range(20 + extra)) for extra in range(4)]
    found = []
    for order in (texts, texts[::-1]):
        model = SmoothedClassifier(by_size, NOISE, n_select=50)
        shares = model.predict_proba(iter(order))  # type: ignore[arg-type]
        assert model.classes_.tolist() == ["a", "b"]
        found.append(dict(zip(order, shares.tolist(), strict=True)))
    assert found[0] == found[1]


def test_short_inputs_are_asked_about_sparingly() -> None:
    """Enumerating 12 words takes 4096 calls; where the first look is enough, it is not done."""
    for count, sure in ((12, True), (12, False), (9, True)):
        asked: list[str] = []

        def answer(copies: list[str], asked: list[str] = asked, sure: bool = sure) -> list[str]:
            asked.extend(copies)
            return ["b" if not sure and copy == "a" else "a" for copy in copies]

        words = " ".join("abcdefghijkl"[:count])
        base = CallableClassifier(answer, ["a", "b"], recheck=0)
        certificate = SmoothedClassifier(base, NOISE).certify([words])[0]
        assert (certificate.exact is not None) == (not sure or count == 9)
        assert len(asked) <= (700 if sure else 4096)


class Colour(Enum):
    RED = 1
    BLUE = 2


def test_labels_of_any_kind() -> None:
    model = SmoothedClassifier(lambda copies: [Colour.RED if len(c) % 2 else Colour.BLUE for c in copies], NOISE)
    assert isinstance(model.certify([TEXT])[0].label, Colour)
    mixed = SmoothedClassifier(lambda copies: [1 if len(c) % 2 else "a" for c in copies], NOISE)
    assert {type(c) for c in mixed.certify([TEXT])[0].classes} == {int, str}
    with pytest.raises(BaseClassifierError, match=r"^the base classifier returned an unknown label 0\.3\d* on input 0"):
        SmoothedClassifier(lambda copies: [0.3] * len(copies), NOISE).certify([TEXT])


def test_classes_are_used_for_anything_with_predict() -> None:
    class Keras:
        def predict(self, copies: list[str]) -> Any:
            return np.array([[0.2, 0.8]] * len(copies))

    assert SmoothedClassifier(Keras(), NOISE, classes=["neg", "pos"]).certify([TEXT])[0].label == "pos"


@pytest.mark.parametrize("inputs", [None, 5, {"text": "a"}], ids=repr)
def test_what_is_not_a_list_of_inputs(inputs: Any) -> None:
    with pytest.raises(ValueError, match=r"^X must be a list of inputs, got "):
        SmoothedClassifier(by_size, NOISE).certify(inputs)


def test_certificates_need_votes() -> None:
    with pytest.raises(ValueError, match=r"^n_estimate must be a whole number of at least 1, got 0$"):
        SmoothedClassifier(by_size, NOISE, n_estimate=0).certify([TEXT])


def test_long_copies_are_remembered_by_a_hash() -> None:
    model = SmoothedClassifier(lambda copies: [len(c) % 2 for c in copies], Deletion(FixedRate(0.5)), classes=[0, 1])
    base = model.base_classifier()
    prepared = base.prepare("x", tuple(f"{i}" for i in range(4000)), Words())
    base.votes([Request(prepared, NOISE.sample(4000, 40, np.random.default_rng(0)))])
    assert {len(key) for key in prepared.answers} == {32}  # type: ignore[arg-type]


def test_certificates_are_plain_json() -> None:
    certificate = SmoothedClassifier(by_size, NOISE, classes=["a", "b"]).certify([TEXT])[0]
    assert json.loads(certificate.to_json()) == certificate.to_dict()
