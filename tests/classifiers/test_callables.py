"""Functions and objects with ``predict`` as base classifiers: what they may return, what is cached and rechecked."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel import Deletion, FixedRate, SmoothedClassifier
from adaptdel.certification.certifier import Input
from adaptdel.classifiers.base import BaseClassifier, BaseClassifierError, InconsistentAnswerError, stable_repr
from adaptdel.classifiers.callables import CallableClassifier, SklearnClassifier

NOISE = Deletion(FixedRate(0.9))
TEXT = " ".join(f"word{number}" for number in range(50))


class Colour(Enum):
    RED = 1
    BLUE = 2


def test_labels_of_any_kind() -> None:
    colours = SmoothedClassifier(
        lambda copies: [Colour.RED if len(c) % 2 else Colour.BLUE for c in copies], NOISE, classes=list(Colour)
    )
    assert isinstance(colours.certify([TEXT])[0].label, Colour)
    mixed = SmoothedClassifier(lambda copies: [1 if len(c) % 2 else "a" for c in copies], NOISE, classes=[1, "a"])
    assert {type(c) for c in mixed.certify([TEXT])[0].classes} == {int, str}
    with pytest.raises(BaseClassifierError, match=r"^the base classifier returned an unknown label 0\.3\d* on input 0"):
        SmoothedClassifier(lambda copies: [0.3] * len(copies), NOISE, classes=[0, 1]).certify([TEXT])


def test_classes_are_used_for_anything_with_predict() -> None:
    class Keras:
        def fit(self, copies: list[str], labels: list[str]) -> None:
            pass

        def predict(self, copies: list[str]) -> Any:
            return np.array([[0.2, 0.8]] * len(copies))

    model = SmoothedClassifier(Keras(), NOISE, classes=["neg", "pos"])
    assert model.certify([TEXT])[0].label == "pos"
    assert model.fit([TEXT, "a"], ["pos", "neg"]).classes_.tolist() == ["neg", "pos"]
    with pytest.raises(ValueError, match="labels named by classes"):
        SmoothedClassifier(Keras(), NOISE).fit([TEXT, "a"], ["pos", "neg"])
    assert model.certify([TEXT])[0].label == "pos"


def test_classes_that_are_not_those_of_the_base_classifier_are_refused() -> None:
    base = CallableClassifier(lambda copies: ["a"] * len(copies), ["a", "b"])
    assert SmoothedClassifier(base, NOISE, classes=["a", "b"]).predict([TEXT]).tolist() == ["a"]
    with pytest.raises(ValueError, match="classes must be"):
        SmoothedClassifier(base, NOISE, classes=["b", "a"]).predict([TEXT])


def test_a_short_copy_that_equals_the_hash_of_a_long_one_gets_its_own_answer() -> None:
    long = b"A" * 300
    short = hashlib.blake2b(long, digest_size=32).digest()
    good = (b"", long, long + short)
    model = SmoothedClassifier(
        lambda copies: ["good" if copy in good else "bad" for copy in copies],
        Deletion(FixedRate(0.5)),
        classes=["bad", "good"],
        unit="chunk:300",
    )
    certificate = model.certify([long + short])[0]
    assert certificate.alpha == 0
    assert (certificate.score, certificate.radius) == (0.75, 0)


# Functions that are none of the copy alone


def by_count(copies: list[str]) -> list[int]:
    return [int(len(copy.split()) > 2) for copy in copies]


class Company:
    """Answers that depend on the longest copy in the batch."""

    def __call__(self, copies: list[str]) -> list[int]:
        longest = max(len(copy) for copy in copies)
        return [int(2 * len(copy) > longest) for copy in copies]


class Order:
    """The first answer of a batch is wrong."""

    def __call__(self, copies: list[str]) -> list[int]:
        right = by_count(copies)
        return [1 - right[0], *right[1:]]


class Chance:
    """A coin that ignores the copy."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, copies: list[str]) -> list[int]:
        return [int(answer) for answer in self.rng.integers(0, 2, len(copies))]


class History:
    """A drift: answers change after 5,000 copies."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, copies: list[str]) -> list[int]:
        self.asked += len(copies)
        return [answer if self.asked < 5000 else 1 - answer for answer in by_count(copies)]


@pytest.mark.parametrize("function", [Company(), Order(), Chance()], ids=["company", "order", "chance"])
@pytest.mark.parametrize("length", [5, 40])
def test_callables_that_are_no_function_of_the_copy_stop(function: Any, length: int) -> None:
    text = " ".join(f"word{place}" for place in range(length))
    model = SmoothedClassifier(function, NOISE, classes=[0, 1], progress=False)
    with pytest.raises(InconsistentAnswerError) as error:
        model.certify([text])
    assert "to the same copy '" in str(error.value)
    assert "of input 0 (" in str(error.value)
    unchecked = CallableClassifier(function, [0, 1], recheck=0)
    SmoothedClassifier(unchecked, NOISE, progress=False).certify([text])


def test_the_recheck_is_cheap_and_leaves_answers_alone() -> None:
    asked: list[int] = []

    def counted(copies: list[str]) -> list[int]:
        asked.append(len(copies))
        return by_count(copies)

    text = " ".join(f"word{place}" for place in range(200))
    certificates, counts = [], []
    for recheck in (0, 64):
        asked.clear()
        base = CallableClassifier(counted, [0, 1], recheck=recheck)
        model = SmoothedClassifier(base, NOISE, sampling="fixed", progress=False)
        certificates.append(model.certify([text])[0])
        counts.append(sum(asked))
    assert 32 <= counts[1] - counts[0] <= 64 + 8 * 12
    assert certificates[0] == replace(certificates[1], model_hash=certificates[0].model_hash)


def test_a_drift_is_found_later() -> None:
    base = CallableClassifier(History(), [0, 1])
    model = SmoothedClassifier(base, NOISE, sampling="fixed", progress=False)
    inputs = [" ".join(f"word{place}" for place in range(length)) for length in range(30, 40)]
    with pytest.raises(InconsistentAnswerError):
        list(map(model.certify, ([text] for text in inputs)))


def test_a_run_stops_at_an_inconsistent_answer() -> None:
    """It is no row's problem: every certificate of the run is in doubt."""
    model = SmoothedClassifier(CallableClassifier(Chance(), [0, 1]), NOISE)
    with pytest.raises(InconsistentAnswerError):
        list(model.certifier()(Input("some words of a text", str(row)) for row in range(3)))


def test_labels_are_safe_in_terminals_and_representations_repeat() -> None:
    with pytest.raises(ValueError, match=r"classes must hold no control characters, got '\\x1b\[31m'"):
        CallableClassifier(len, ["a", "\x1b[31m"])
    assert " at 0x" not in stable_repr(CallableClassifier(lambda copies: copies, ["a", "b"]))


@pytest.mark.parametrize("classes", [["b", "b"], ["a", "b", "b"], [1, True], [0, 0.0]])
def test_classes_that_repeat_a_label_are_refused(classes: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"classes must be distinct labels, got .* twice in"):
        SmoothedClassifier(by_count, NOISE, classes=classes, progress=False).certify(["a b c"])

    class Own(BaseClassifier):
        def __init__(self) -> None:
            self.classes_ = classes

        def votes(self, requests: Any) -> Any:
            return [np.zeros(len(request.kept), dtype=np.int64) for request in requests]

    with pytest.raises(ValueError, match=r"classes must be distinct labels, got .* twice in"):
        SmoothedClassifier(Own(), NOISE, progress=False).predict(["a b c"])


class Own:
    """A class of the user."""

    classes_ = (0, 1)

    def predict(self, copies: list[str]) -> list[int]:
        return [len(copy) % 2 for copy in copies]


def test_what_the_user_states_is_the_fingerprint_of_his_code() -> None:
    """Code is not looked into: without a statement, runs cannot be resumed."""
    function, estimator = (lambda copies: [0 for _ in copies]), Own()
    for base in (CallableClassifier(function, [0, 1]), SklearnClassifier(estimator)):
        assert base.fingerprint() == ""
    function.fingerprint = estimator.fingerprint = "v3"  # type: ignore[attr-defined]
    found = {
        CallableClassifier(function, [0, 1]).fingerprint(),
        CallableClassifier(by_count, [0, 1], fingerprint="v3").fingerprint(),
        SklearnClassifier(estimator).fingerprint(),
    }
    assert len(found) == 1
    assert len(*found) == 64
    assert CallableClassifier(by_count, [0, 1], fingerprint="v4").fingerprint() not in found


def test_estimators_have_a_hash_of_what_they_learned(tmp_path: Path) -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    regression = pytest.importorskip("sklearn.linear_model").LogisticRegression
    make = pytest.importorskip("sklearn.pipeline").make_pipeline

    def fitted(words: str = "bad bad", **settings: Any) -> SklearnClassifier:
        pipeline = make(text.TfidfVectorizer(**settings), regression())
        return SklearnClassifier(pipeline.fit(["good film", words, "a film", "a plot"] * 3, [1, 0, 1, 0] * 3))

    first = fitted(stop_words="english").fingerprint()
    assert first == fitted(stop_words="english").fingerprint()
    assert len({first, fitted("bad").fingerprint(), fitted(stop_words=["a"]).fingerprint()}) == 3
    space: dict[str, Any] = {"__name__": "nowhere"}
    exec("def made(text): return text.split()", space)
    for own in (str.split, by_count, space["made"]):
        is_known = own is str.split
        assert bool(fitted(tokenizer=own, token_pattern=None).fingerprint()) == is_known
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from adaptdel.classifiers import SklearnClassifier; from pathlib import Path\n"
        "print(SklearnClassifier.load(Path(sys.argv[2])).fingerprint())"
    )
    pytest.importorskip("skops")
    fitted(stop_words="english").save(tmp_path / "base")
    source = Path(ad.__file__).parents[1]
    command = [sys.executable, "-c", program, str(source), str(tmp_path / "base")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == first
