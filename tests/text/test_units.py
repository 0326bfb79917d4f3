"""Units: what the attacker edits is what an edited input is split into, and different tokens are never confused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaptdel.classifiers.base import BaseClassifier, Request
from adaptdel.classifiers.callables import CallableClassifier
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.core.checks import token_key
from adaptdel.core.general import certify_general
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import FixedRate
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.text.units import Bytes, Characters, Chunks, Labelled, Tokens, Unit, Words, content_key


def equals(wanted: Any) -> Callable[[list[Any]], list[int]]:
    return lambda copies: [int(copy == wanted) for copy in copies]


def test_labelled_chunks_never_merge() -> None:
    """RS-Del's attacker deletes the middle instruction; on labels [0, 1, 0] the rest became one chunk of two bytes.

    "ac" is a copy with probability 0.147 before, 0.49 after if its bytes are two chunks, and 0.7 if they are one.
    """
    model = SmoothedClassifier(equals(b"ac"), Deletion(FixedRate(0.3)), unit="labelled", classes=[0, 1], ops=["del"])
    certificate, edited = model.certify([(b"abc", [0, 1, 2]), (b"ac", [0, 2])])
    assert (certificate.label, certificate.radius) == (0, 1)
    assert edited.label == 0
    with pytest.raises(ValueError, match=r"labels must .* got 0 again at byte 2"):
        model.certify([(b"abc", [0, 1, 0])])


def test_labels_of_every_kind() -> None:
    for labels in ([7, 7, 3], np.array([7, 7, 3]), ["x", "x", "y"], "xxy", b"xxy"):
        assert Labelled().split((b"abc", labels)) == (b"ab", b"c")
    assert Labelled().split((b"", [])) == ()
    for wrong in ([1, True, 1], [0.0, 0.0, 1.0], [None, None, 1], [[0], [0], [1]]):
        with pytest.raises(ValueError, match=r"labels must be integers or strings, got (bool|float|NoneType|list)"):
            Labelled().split((b"abc", wrong))


ALPHABETS: list[tuple[Unit, list[Any]]] = [
    (Words(), ["a", "é", "\u0301", "\u200b", "a-b", "\ud83d"]),
    (Characters(), [" ", "\n", "\r", "e", "\u0301", "\ud83d", "\ude00", "😀"]),
    (Bytes(), [0, 13, 10, 128, 255]),
    (Chunks(3), [b"abc", b"cab", b"\0\0\0"]),
]


@pytest.mark.parametrize(("unit", "alphabet"), ALPHABETS, ids=[unit.kind for unit, _ in ALPHABETS])
@given(data=st.data())
def test_every_sequence_of_tokens_is_the_tokens_of_an_input(
    unit: Unit, alphabet: list[Any], data: st.DataObject
) -> None:
    tokens = tuple(data.draw(st.lists(st.sampled_from(alphabet), max_size=8)))
    if isinstance(unit, Chunks) and data.draw(st.booleans()):
        tokens += (b"z",)  # only the last may be shorter
    assert unit.split(unit.join(tokens)) == tokens


ALIKE: list[Any] = [1, True, 1.0, np.int64(1), np.float32(1), np.bool_(True), np.int32(1), Decimal(1), Decimal("1.0")]
ALIKE += [0.0, -0.0, 0, False, (1,), (True,), ((1.0,),), frozenset({1}), frozenset({True}), "1", b"1", None]


def test_keys_tell_tokens_apart_that_python_holds_to_be_equal() -> None:
    assert len({token_key(token) for token in ALIKE}) == len(ALIKE)
    assert all(token_key(token) == token_key(token) for token in ALIKE)
    assert token_key(("a", 10**20)) == token_key(("a", 10**20))
    keys = {content_key((token,)) for token in ALIKE if not isinstance(token, frozenset)}
    assert len(keys) == len(ALIKE) - 2
    assert content_key((b"a",)) != content_key(tuple(b"4:b'a'"))
    assert content_key(("😀",)) != content_key(("\ud83d\ude00",))


def plain(tokens: Sequence[Any]) -> list[Any]:
    return list(tokens)


class Listed(Unit):
    kind = "listed"
    mask = "?"

    def split(self, text: Any) -> Tokens:
        return tuple(text)

    def join(self, tokens: Sequence[Any]) -> list[Any]:
        return list(tokens)


@pytest.mark.parametrize("unit", [(plain, plain), Listed()], ids=["callables", "class"])
@pytest.mark.parametrize("pair", [(1, True), (1, 1.0), (np.int64(1), 1), (0.0, -0.0), ((1,), (True,))], ids=repr)
def test_answers_are_not_shared_by_equal_tokens_of_different_types(unit: Any, pair: tuple[Any, Any]) -> None:
    """A model that tells the two apart is certified as one that reads two different texts."""
    first, second = pair

    def by_repr(copies: list[Any]) -> list[int]:
        return [int(len(copy) > 0 and repr(copy[-1]) == repr(second)) for copy in copies]

    noise = Deletion(FixedRate(0.6))
    texts = [(first, second), (second, first), (first, first, second, second), (second,) * 4 + (first,), (first,) * 3]
    model = SmoothedClassifier(by_repr, noise, unit=unit, classes=[0, 1])
    named = SmoothedClassifier(lambda copies: [int(copy.endswith("b")) for copy in copies], noise, classes=[0, 1])
    names = [" ".join("b" if repr(token) == repr(second) else "a" for token in text) for text in texts]
    for own, other in zip(model.certify(texts), named.certify(names), strict=True):
        assert own.evidence == other.evidence
        assert (own.label, own.radius) == (other.label, other.radius)


def test_equal_copies_are_still_one() -> None:
    base = CallableClassifier(equals([1]), [0, 1])
    kept = (np.arange(16)[:, None] >> np.arange(4) & 1).astype(np.bool_)
    request = Request(base.prepare("x", (1, True, 1, True), Listed()), kept)
    keys = base.keys(request)
    assert len(set(keys)) == len({base.show(request.prepared, key) for key in keys}) == 12
    masked = Request(base.prepare("x", (1, True), Listed(), masking=True), np.array([[True, False], [False, True]]))
    assert [base.show(masked.prepared, key) for key in base.keys(masked)] == ["[1, '?']", "['?', True]"]


def test_the_linear_model_refuses_a_fraction() -> None:
    model: BaseClassifier = LinearClassifier(bits=6).fit(
        [(1, 2), (3,)], [0, 1], noise=Deletion(FixedRate(0.5)), copies=2
    )
    model.prepare("x", (1, True), Listed())
    with pytest.raises(ValueError, match=r"a token must be a string, bytes, an integer or a tuple of these, got 1.5"):
        model.prepare("x", (1.5,), Listed())


def test_a_rate_by_content_tells_equal_tokens_apart() -> None:
    """True is rarely deleted: to write it for 1 costs all of the radius, and to Python it is no change."""

    def rate(tokens: Tokens) -> float:
        return 0.1 if any(token is True for token in tokens) else 0.9

    options: dict[str, Any] = {"sequence": (1, 2), "ops": ["sub"]}
    assert certify_general(0.99, rate=rate, vocabulary=[1, 2, True], **options) == 0
    assert certify_general(0.99, rate=rate, vocabulary=[1, 2], **options) > 0
    assert certify_general(0.99, rate=rate, vocabulary=[2, 1, 1], **options) > 0
