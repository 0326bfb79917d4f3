"""Base classifiers that classify each distinct copy of an input once, and some copies twice as a check."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.classifiers.base import (
    BaseClassifier,
    BaseClassifierError,
    InconsistentAnswerError,
    Prepared,
    Request,
)
from adaptdel.core.checks import IntArray

REMEMBERED = 2**16  # distinct copies of an input whose answers are cached
LONG_KEY = 256  # longer keys are cached by their hash
RECHECKED = 64  # of the first copies are classified again
RECHECKED_SHARE, RECHECKED_LEAST = 8, 16  # every 8th copy of a call, and at least this number
RECHECKED_ALONE = 2
RECHECKED_LATER = 8  # of the very first copies are classified again in later calls


class DistinctClassifier(BaseClassifier):
    """A base classifier that classifies each distinct copy of an input once.

    A subclass defines by which `keys` copies are compared, and classifies distinct copies (`answer`).

    Attributes:
        recheck: the number of copies at the beginning that are classified a second time, in other batches and another
            order; a different answer raises an `InconsistentAnswerError`. 0 disables the check.
    """

    recheck: int = RECHECKED
    _rechecked: int = 0
    _calls: int = 0

    @cached_property
    def _early(self) -> list[tuple[Prepared, Hashable, int]]:
        """Some of the first copies, with their answers."""
        return []

    def forget_answers(self) -> None:
        """Start the repeated classification of copies anew: the model has changed."""
        self.__dict__.pop("_early", None)
        self._rechecked = self._calls = 0

    @abstractmethod
    def keys(self, request: Request) -> list[Hashable]:
        """A hashable key for each copy; copies of an input with equal keys get the same answer."""

    @abstractmethod
    def answer(self, copies: Sequence[tuple[Prepared, Hashable]]) -> IntArray:
        """The class numbers of distinct copies, shape (copies,)."""

    def votes(self, requests: Sequence[Request]) -> list[IntArray]:
        """Classify the copies whose answers are not cached, those of all inputs together."""
        keys = [self.keys(request) for request in requests]
        new: dict[tuple[int, Hashable], tuple[Prepared, Hashable]] = {}
        for request, row in zip(requests, keys, strict=True):
            known = request.prepared.answers
            for key, name in zip(row, map(_short, row), strict=True):
                if name not in known:
                    new.setdefault((id(known), name), (request.prepared, key))
        fresh = dict(zip(new, self._answered(list(new.values())).tolist(), strict=True)) if new else {}
        out = []
        for request, row in zip(requests, keys, strict=True):
            known = request.prepared.answers
            names = map(_short, row)
            out.append(np.array([known[n] if n in known else fresh[id(known), n] for n in names], dtype=np.int64))
        for (_, name), (prepared, _) in zip(new, new.values(), strict=True):
            if len(prepared.answers) < REMEMBERED:
                prepared.answers[name] = fresh[id(prepared.answers), name]
        return out

    def _answered(self, copies: Sequence[tuple[Prepared, Hashable]]) -> IntArray:
        """Call `answer` and recheck some answers; an error names the input that failed, or the first of several."""
        try:
            answers = self.answer(copies)
            self._recheck_some(copies, answers)
            return answers
        except (BaseClassifierError, InconsistentAnswerError):
            raise
        except Exception as error:
            raise BaseClassifierError(
                f"the base classifier failed on {copies[0][0].name}: {type(error).__name__}: {error}"
            ) from error

    def _recheck_some(self, copies: Sequence[tuple[Prepared, Hashable]], answers: IntArray) -> None:
        """Classify some of the first copies again: together in another order, and a few of them alone.

        A few of the very first are classified again in later calls, too, at increasing intervals.
        """
        self._calls += 1
        size = min(self.recheck - self._rechecked, max(RECHECKED_LEAST, len(copies) // RECHECKED_SHARE), len(copies))
        chosen: list[tuple[Prepared, Hashable, int]] = []
        if size > 0:
            rng = np.random.Generator(np.random.Philox(self._rechecked))
            chosen = [(*copies[place], int(answers[place])) for place in rng.permutation(len(copies))[:size]]
            self._rechecked += size
            self._compare(chosen)
            for copy in chosen[:RECHECKED_ALONE] if size > 1 else ():
                self._compare([copy])
        if self._early and self._calls & (self._calls - 1) == 0:  # a power of two
            self._compare([*self._early])  # threads add to it
        for prepared, key, answer in chosen[: RECHECKED_LATER - len(self._early)]:
            self._early.append((replace(prepared, answers={}), key, answer))

    def _compare(self, answered: Sequence[tuple[Prepared, Hashable, int]]) -> None:
        """Classify copies again, and raise if an answer differs."""
        again = self.answer([(prepared, key) for prepared, key, _ in answered]).tolist()
        for (prepared, key, answer), other in zip(answered, again, strict=True):
            if other != answer:
                shown = self.show(prepared, key)
                shown = shown if len(shown) <= 200 else shown[:197] + "..."
                raise InconsistentAnswerError(
                    f"the base classifier answered {self.label(answer)!r} and then {self.label(other)!r} to the same "
                    f"copy {shown} of {prepared.name}: its answer must depend on the copy alone, not on the other "
                    "copies, their order, earlier calls or chance, or no certificate holds"
                )

    def show(self, prepared: Prepared, key: Hashable) -> str:
        """A copy as it is shown in messages."""
        return repr(key)


def _short(key: Hashable) -> Hashable:
    """The key of the cache of answers: a long key is replaced by its hash to save memory."""
    if isinstance(key, str) and len(key) > LONG_KEY:
        key = key.encode("utf-8", "surrogatepass")
    if isinstance(key, bytes) and len(key) > LONG_KEY:
        return len(key), hashlib.blake2b(key, digest_size=32).digest()  # tagged: a short copy may be equal to a hash
    return key


def best_class(scores: npt.NDArray[Any], describe: Callable[[int], str]) -> IntArray:
    """The class of the highest score in every row; NaN is an error that names its input."""
    wrong = np.isnan(scores).any(axis=1)
    if wrong.any():
        raise BaseClassifierError(f"the base classifier returned NaN on {describe(int(np.argmax(wrong)))}")
    return np.argmax(scores, axis=1).astype(np.int64)
