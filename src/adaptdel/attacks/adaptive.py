"""The adaptive attack: greedy and beam search over edits by the change of the smoothed vote share.

It knows the noise, the base model and the training vocabulary. Texts of a step are compared on the same noise. An edit
of one token changes only the copies that keep this token, so only these are classified again: a comparison on 1,000
copies at a deletion rate of 90% costs about 100 calls of the base model.

A text counts as adversarial only after fresh votes, or the enumeration of all copies, prove that the smoothed answer is
another one. Its true edit distance from the original is an upper bound on the radius of the original.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from adaptdel.attacks.edits import edit_distance
from adaptdel.attacks.target import (
    CopyAnswers,
    FreshVotes,
    Measured,
    QueryLimitReached,
    SmoothedTarget,
    TimeLimitReached,
)
from adaptdel.attacks.vocabulary import Vocabulary, support
from adaptdel.certification.sampling import content_key, stream
from adaptdel.core.checks import BoolArray, FloatArray
from adaptdel.settings import AttackSettings
from adaptdel.text.units import Tokens

SUCCESS, FAILURE, SKIPPED, TIMEOUT = OUTCOMES = ("success", "failure", "skipped", "timeout")
LEAST_BUDGET = 8  # edits of short texts, unless a budget is given
BISECTED = 8  # sizes of a plan that are compared between two of the first comparison


@dataclass(frozen=True)
class AttackResult:
    """The result of an attack on an input.

    Attributes:
        outcome: "success", "failure" or "timeout".
        tokens: the adversarial text, or None.
        distance: its exact edit distance from the original, in the allowed operations.
        verification: the votes on the adversarial text.
        queries: texts that were evaluated.
        votes: calls of the base classifier.
        seconds: the time it took.
    """

    outcome: str
    tokens: Tokens | None
    distance: int | None
    verification: FreshVotes | None
    queries: int
    votes: int
    seconds: float


@dataclass(frozen=True)
class Edit:
    """One edit of a token at a place; ``word`` is what is written."""

    operation: str
    place: int
    word: Hashable = None


@dataclass(frozen=True)
class Draft:
    """A text in the search: its tokens, and for each the place in the original; −1 if the attack wrote it."""

    tokens: Tokens
    origins: tuple[int, ...]

    def edited(self, edit: Edit) -> Draft:
        """The text after an edit."""
        at, tokens, origins = edit.place, self.tokens, self.origins
        written = () if edit.operation == "del" else (edit.word,)
        after = at if edit.operation == "ins" else at + 1
        places = (-1,) * len(written)
        return Draft((*tokens[:at], *written, *tokens[after:]), (*origins[:at], *places, *origins[after:]))


class AdaptiveAttack:
    """Search for the closest text with another smoothed answer.

    Args:
        target: the smoothed classifier.
        vocabulary: the words that may be written.
    """

    def __init__(self, target: SmoothedTarget, vocabulary: Vocabulary) -> None:
        self.target, self.vocabulary = target, vocabulary

    @property
    def settings(self) -> AttackSettings:
        """The limits and the width of the search."""
        return self.target.settings

    def __call__(self, tokens: Tokens, label: int, *, budget: int | None = None) -> AttackResult:
        """Attack a text whose smoothed answer is the class ``label``, with at most ``budget`` edits."""
        self.target.begin()
        search = _Search(self, tokens, label, self.settings.budget if budget is None else budget)
        outcome = FAILURE
        try:
            search.run()
        except QueryLimitReached:
            pass
        except TimeLimitReached:
            outcome = TIMEOUT
        adversarial, spent = search.adversarial, self.target.spent
        if adversarial is None:
            return AttackResult(outcome, None, None, None, spent.queries, spent.votes, spent.seconds)
        text, verification, distance = adversarial
        return AttackResult(SUCCESS, text, distance, verification, spent.queries, spent.votes, spent.seconds)


class _Search:
    """The attack on one input."""

    def __init__(self, attack: AdaptiveAttack, tokens: Tokens, label: int, budget: int | None) -> None:
        self.target, self.vocabulary, self.settings = attack.target, attack.vocabulary, attack.settings
        self.original, self.label = tokens, label
        self.threat = self.target.rule.threat
        noise = self.target.rule.noise
        self.size = self.settings.search_votes if noise.changes_inputs else 1
        largest = self.threat.largest(len(tokens))
        self.budget = max(LEAST_BUDGET, len(tokens)) if budget is None else budget
        self.budget = self.budget if largest is None else min(self.budget, largest)
        self.steps = 0
        self.support: FloatArray = np.zeros(len(tokens))
        self.words: list[Hashable] = []
        self.checked = 0  # texts that were verified
        self.adversarial: tuple[Tokens, FreshVotes, int] | None = None

    def run(self) -> None:
        """Rank tokens and words, try plans of many edits, then search step by step for fewer."""
        if self.budget < 1:
            return
        start = Draft(self.original, tuple(range(len(self.original))))
        sample = self._rank(start)
        self._choose_words(start, sample)
        planned = self._plans()
        self._search(start, self.budget if planned is None else planned - 1)

    # Ranking

    def _rank(self, start: Draft) -> CopyAnswers:
        """Rank the tokens of the input by how much they speak for the label."""
        kept = self._noise(len(self.original))
        (sample,) = self.target.samples([(self.original, kept)], self.label)
        counts = self.target.counts(sample.answers)
        order = np.argsort(-counts, kind="stable")
        self.rivals = [int(number) for number in order if number != self.label][:2]
        ranked = support(self.target.certifier, self.original, self.label, self.rivals)
        if ranked is None:
            ranked = self._influence(kept, sample)
        self.support = ranked
        return sample

    def _influence(self, kept: BoolArray, sample: CopyAnswers) -> FloatArray:
        """For a model that only votes: the share for the label where a token is kept, minus where it is not."""
        votes = (sample.answers == self.label).astype(np.float64)
        number = kept.sum(axis=0)
        others = len(kept) - number
        with_token = votes @ kept / np.maximum(number, 1)
        without = votes @ ~kept / np.maximum(others, 1)
        return np.asarray(np.where((number > 0) & (others > 0), with_token - without, 0.0))

    def _choose_words(self, start: Draft, sample: CopyAnswers) -> None:
        """Order the short list of words by the votes on copies of this input in which they occur."""
        if not (self.threat.inserts or self.threat.substitutes):
            return
        words = self.vocabulary.against(self.label, self.rivals, self.settings.shortlist)
        operation = "sub" if self.threat.substitutes and self.original else "ins"
        if operation == "ins" and not self.threat.inserts:
            return
        place = int(np.argmax(self.support)) if len(self.original) else 0
        measured = self._measure_edits(start, [Edit(operation, place, word) for word in words])
        order = sorted(range(len(words)), key=lambda number: measured[number].key)
        self.words = [words[number] for number in order]

    # Comparisons

    def _noise(self, length: int) -> BoolArray:
        return self.target.draw(self.original, length, self.size, f"step {self.steps}")

    def _measure(self, texts: Sequence[Tokens]) -> list[Measured]:
        """Compare whole texts on all copies, in one batch."""
        self.steps += 1
        noise = {length: self._noise(length) for length in sorted({len(text) for text in texts})}
        samples = self.target.samples([(text, noise[len(text)]) for text in texts], self.label)
        return [self._measured(sample) for sample in samples]

    def _measured(self, sample: CopyAnswers, rest: CopyAnswers | None = None) -> Measured:
        """Votes on the copies that an edit changed, together with those on the rest."""
        samples = [sample] if rest is None else [sample, rest]
        counts = sum((self.target.counts(part.answers) for part in samples), start=np.zeros(self.target.classes))
        margins = [part.margins for part in samples if part.margins is not None]
        score = float(np.concatenate(margins).mean()) if margins and sum(map(len, margins)) else 0.0
        return Measured(self.target.margin(counts, self.label), score)

    def _measure_edits(self, draft: Draft, edits: Sequence[Edit]) -> list[Measured]:
        """Compare single edits of a text, in one batch; only copies that keep the edited token are classified.

        The rate of the text as it is serves for texts of one token more or less: that ranks edits well enough, and the
        result is verified under the true noise.
        """
        self.steps += 1
        kept = self._noise(len(draft.tokens))
        new = self._new_tokens(len(draft.tokens))
        (base,) = self.target.samples([(draft.tokens, kept)], self.label)
        copies, changed = [], []
        for edit in edits:
            rows = new if edit.operation == "ins" else kept[:, edit.place]
            copies.append(_copies(draft, edit, kept[rows]))
            changed.append(rows)
        samples = self.target.samples(copies, self.label)
        return [self._measured(sample, _part(base, ~rows)) for sample, rows in zip(samples, changed, strict=True)]

    def _new_tokens(self, length: int) -> BoolArray:
        """In which copies an inserted token is kept, shape (copies,)."""
        rng = stream(self.settings.seed, content_key(self.original), f"attack new {self.steps}")
        return np.asarray(rng.random(self.size) >= self.target.rule.noise.share_removed(length + 1))

    # Plans of many edits

    def _plans(self) -> int | None:
        """Try plans of 1, 2, 4, ... edits of one kind; the number of edits of the best that was verified, or None."""
        plans = list(self._kinds())
        sizes = _sizes(self.budget)
        grid = [(size, plan) for plan in plans for size in sizes if plan(size) is not None]
        if not grid:
            return None
        measured = self._measure([plan(size) or () for size, plan in grid])
        lost = [(size, plans.index(plan)) for (size, plan), m in zip(grid, measured, strict=True) if m.margin < 0]
        if not lost:
            return None
        for number in [number for _, number in sorted(lost)][:2]:  # the two plans that need the fewest edits
            first = min(size for size, other in lost if other == number)
            known = sorted({size for size, other in lost if other == number and size > first})
            low = max((size for size in sizes if size < first), default=0)
            between = np.unique(np.linspace(low + 1, first, min(BISECTED, first - low)).round().astype(int)).tolist()
            texts = {size: plans[number](size) or () for size in between}
            results = self._measure(list(texts.values()))
            promising = [size for size, m in zip(texts, results, strict=True) if m.margin < 0]
            for size in [*promising, *known]:
                if self._verified(plans[number](size) or ()):
                    break
        return None if self.adversarial is None else self.adversarial[2]

    def _kinds(self) -> Iterator[Callable[[int], Tokens | None]]:
        """Plans: the text after a number of edits of one kind, or None if there are too few tokens."""
        order = np.argsort(-self.support, kind="stable").tolist()
        words, tokens = self.words, self.original

        def substituted(written: list[Hashable]) -> Callable[[int], Tokens | None]:
            def plan(size: int) -> Tokens | None:
                if size > len(tokens):
                    return None
                text = list(tokens)
                for number, place in enumerate(order[:size]):
                    text[place] = written[number % len(written)]
                return tuple(text)

            return plan

        def inserted(written: list[Hashable]) -> Callable[[int], Tokens | None]:
            at = order[0] if order else 0
            return lambda size: (
                *tokens[:at], *(written[number % len(written)] for number in range(size)), *tokens[at:]
            )  # fmt: skip

        def deleted(size: int) -> Tokens | None:
            gone = set(order[:size])
            return tuple(t for place, t in enumerate(tokens) if place not in gone) if size <= len(tokens) else None

        lists = [words[:1], words[: self.settings.words]][: min(2, len(words))]
        for written in lists:
            if self.threat.substitutes:
                yield substituted(written)
            if self.threat.inserts:
                yield inserted(written)
        if self.threat.deletes:
            yield deleted

    # Step by step

    def _search(self, start: Draft, depth: int) -> None:
        """Greedy search, or beam search, of up to ``depth`` edits."""
        beam = [start]
        seen = {start.tokens}
        for _ in range(depth):
            ranked: list[tuple[tuple[float, float], int, Draft]] = []
            for draft in beam:
                edits = self._moves(draft)
                if edits:
                    for edit, measured in zip(edits, self._measure_edits(draft, edits), strict=True):
                        ranked.append((measured.key, len(ranked), draft.edited(edit)))
            beam = []
            for (margin, _), _, draft in sorted(ranked, key=lambda entry: entry[:2]):
                if draft.tokens in seen:
                    continue
                seen.add(draft.tokens)
                if margin < 0 and not beam and self._verified(draft.tokens):
                    return
                beam.append(draft)
                if len(beam) == self.settings.beam:
                    break
            if not beam:
                return

    def _moves(self, draft: Draft) -> list[Edit]:
        """The edits that a step compares: of the tokens that speak most for the label, with the best words."""
        places = [place for place, origin in enumerate(draft.origins) if origin >= 0]
        places.sort(key=lambda place: -self.support[draft.origins[place]])
        places = places[: self.settings.positions]
        words = self.words[: self.settings.words]
        edits = []
        if self.threat.substitutes:
            edits += [Edit("sub", at, word) for at in places for word in words if word != draft.tokens[at]]
        if self.threat.inserts:
            edits += [Edit("ins", places[0] if places else 0, word) for word in words]
        if self.threat.deletes:
            edits += [Edit("del", at) for at in places]
        return edits

    def _verified(self, tokens: Tokens) -> bool:
        """Check a text by fresh votes, and keep it if it is the closest adversarial text so far.

        The n-th check gets the share 1 / n(n + 1) of the level. These shares add up to 1, so that the level bounds the
        probability that any text of this input passes by mistake.
        """
        distance = edit_distance(self.original, tokens, self.threat.ops)
        if distance > self.budget or (self.adversarial is not None and distance >= self.adversarial[2]):
            return self.adversarial is not None and distance <= self.budget
        self.checked += 1
        level = self.settings.level / (self.checked * (self.checked + 1))
        verification = self.target.verify(tokens, self.label, level=level)
        if verification.changed is not True:
            return False
        self.adversarial = tokens, verification, int(distance)
        return True


def _sizes(budget: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, ... and the budget."""
    sizes = [1, 2, 3]
    while sizes[-1] < budget:
        sizes.append(4 if sizes[-1] == 3 else sizes[-2] * 2)
    return [size for size in sizes if size < budget] + [budget]


def _copies(draft: Draft, edit: Edit, kept: BoolArray) -> tuple[Tokens, BoolArray]:
    """The copies of an edited text that keep the token in question; a deleted token is one that is never kept."""
    if edit.operation == "del":
        kept = kept.copy()
        kept[:, edit.place] = False
        return draft.tokens, kept
    if edit.operation == "ins":
        kept = np.insert(kept, edit.place, True, axis=1)
    return draft.edited(edit).tokens, kept


def _part(sample: CopyAnswers, rows: BoolArray) -> CopyAnswers:
    return CopyAnswers(sample.answers[rows], None if sample.margins is None else sample.margins[rows])
