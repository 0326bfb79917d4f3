"""The adaptive attack: a greedy search over edits by the change of the smoothed vote share.

It knows the noise, the base model and the training vocabulary. Texts of a step are compared on the same noise. An edit
of one token changes only the copies that keep this token, so only these are classified again: a comparison on 1,000
copies at a deletion rate of 90% costs about 100 calls of the base model.

A text counts as adversarial only after fresh votes, or the enumeration of all copies, prove that the smoothed answer is
another one. Its true edit distance from the original is an upper bound on the radius of the original.

The words that it writes are those of the training texts. A model that gives scores ranks a word by the scores of a copy
that consists of this word alone; for a model that only votes, words are ranked by how much more often they occur in
texts of one class than of the others. That makes a short list, whose words are compared by votes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, cycle, islice
from math import inf
from typing import Any

import numpy as np

from adaptdel.attacks.outcomes import FAILURE, SUCCESS, TIMEOUT
from adaptdel.attacks.target import CopyAnswers, FreshVotes, QueryLimitReached, Target, TimeLimitReached
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import stream
from adaptdel.classifiers.base import Request
from adaptdel.core.checks import BoolArray, FloatArray, IntArray, token_key
from adaptdel.core.threat import Threat
from adaptdel.runs.inputs import LabelMap, Source
from adaptdel.settings import AttackSettings
from adaptdel.text.data import Row
from adaptdel.text.units import Tokens, Unit, content_key

LEAST_BUDGET = 8  # edits of short texts, unless a budget is given
CHUNK = 256  # words that are scored together
MOST_WORDS = 50_000  # of a vocabulary, the most frequent ones
LEAST_COUNT = 2  # occurrences of a word of the vocabulary
BISECTED = 8  # sizes of a plan that are compared between two of the first comparison

# The lead of the label in shares of votes, below 0 if it lost, and for texts with the same votes the mean margin in
# scores, 0 without scores: smaller is better for the attacker.
Measured = tuple[float, float]
Plan = Callable[[int], Tokens]


@dataclass(frozen=True)
class AttackResult:
    """The result of an attack on an input."""

    outcome: str  # "success", "failure" or "timeout"
    tokens: Tokens | None  # the adversarial text, if one was found
    distance: int | None  # its exact edit distance from the original, in the allowed operations
    verification: FreshVotes | None  # that its answer is another one
    queries: int  # texts that were evaluated
    votes: int  # calls of the base classifier


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
        positions = (-1,) * len(written)
        return Draft((*tokens[:at], *written, *tokens[after:]), (*origins[:at], *positions, *origins[after:]))


@dataclass(frozen=True)
class AdaptiveAttack:
    """Search for the closest text with another smoothed answer."""

    target: Target  # of which noisy copies vote
    vocabulary: Vocabulary  # the words that may be written

    def __call__(self, tokens: Tokens, label: int, *, budget: int | None = None) -> AttackResult:
        """Attack a text whose smoothed answer is the class ``label``, with at most ``budget`` edits."""
        target = self.target
        target.begin()
        search = _Search(self, tokens, label, target.settings.budget if budget is None else budget)
        outcome = FAILURE
        try:
            search.run()
        except QueryLimitReached:
            pass
        except TimeLimitReached:
            outcome = TIMEOUT
        text, verification, distance = search.adversarial or (None, None, None)
        outcome = outcome if text is None else SUCCESS
        return AttackResult(outcome, text, distance, verification, target.queries, target.votes)


class _Search:
    """The attack on one input."""

    def __init__(self, attack: AdaptiveAttack, tokens: Tokens, label: int, budget: int | None) -> None:
        self.target, self.vocabulary, self.settings = attack.target, attack.vocabulary, attack.target.settings
        self.original, self.label, self.threat = tokens, label, self.target.plan.threat
        self.size = self.settings.search_votes if self.target.noise.changes_inputs else 1
        largest = self.threat.largest(len(tokens))
        self.budget = max(LEAST_BUDGET, len(tokens)) if budget is None else budget
        self.budget = self.budget if largest is None else min(self.budget, largest)
        self.steps = 0
        self.support: FloatArray = np.zeros(len(tokens))
        self.words: list[Hashable] = []
        self.rivals: list[int] = []
        self.checked = 0  # texts that were verified
        self.adversarial: tuple[Tokens, FreshVotes, int] | None = None

    def run(self) -> None:
        """Rank tokens and words, try plans of many edits, then search step by step for fewer."""
        if self.budget < 1:
            return
        start = Draft(self.original, tuple(range(len(self.original))))
        self.support = self._ranked_tokens()
        self.words = self._ranked_words(start)
        self._try_plans()
        self._search(start, self.budget if self.adversarial is None else self.adversarial[2] - 1)

    def _ranked_tokens(self) -> FloatArray:
        """How much each token of the input speaks for the label, shape (tokens,)."""
        kept = self._noise(len(self.original))
        (sample,) = self.target.samples([(self.original, kept)], self.label)
        order = np.argsort(-np.bincount(sample.answers, minlength=self.target.classes), kind="stable")
        self.rivals = [int(number) for number in order if number != self.label][:2]
        distinct = {token: place for place, token in enumerate(dict.fromkeys(self.original))}
        if not distinct:
            return np.zeros(0)
        scores = model_scores(self.target.certifier, list(distinct))
        if scores is not None:
            lead = scores[:, self.label] - np.max([scores[:, rival] for rival in self.rivals], axis=0)
            return np.array([lead[distinct[token]] for token in self.original])
        # The model only votes: the share for the label where a token is kept, minus where it is not.
        votes = (sample.answers == self.label).astype(np.float64)
        number = kept.sum(axis=0)
        others = len(kept) - number
        with_token = votes @ kept / np.maximum(number, 1)
        without = votes @ ~kept / np.maximum(others, 1)
        return np.asarray(np.where((number > 0) & (others > 0), with_token - without, 0.0))

    def _ranked_words(self, start: Draft) -> list[Hashable]:
        """The short list of words, ordered by the votes on copies of this input in which they occur."""
        if self.threat.substitutes and self.original:
            operation = "sub"
        elif self.threat.inserts:
            operation = "ins"
        else:
            return []
        words = self.vocabulary.against(self.label, self.rivals, self.settings.shortlist)
        place = int(np.argmax(self.support)) if len(self.original) else 0
        measured = self._measure_edits(start, [Edit(operation, place, word) for word in words])
        return [words[number] for number in sorted(range(len(words)), key=measured.__getitem__)]

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
        counts = np.bincount(np.concatenate([part.answers for part in samples]), minlength=self.target.classes)
        margins = [part.margins for part in samples if part.margins is not None]
        score = float(np.concatenate(margins).mean()) if margins and sum(map(len, margins)) else 0.0
        return self.target.margin(counts, self.label), score

    def _measure_edits(self, draft: Draft, edits: Sequence[Edit]) -> list[Measured]:
        """Compare single edits of a text, in one batch; only copies that keep the edited token are classified.

        The rate of the text as it is serves for texts of one token more or less: that ranks edits well enough, and the
        result is verified under the true noise.
        """
        self.steps += 1
        kept = self._noise(len(draft.tokens))
        rng = stream(self.settings.seed, content_key(self.original), f"attack new {self.steps}")
        # the copies in which an inserted token is kept
        new = rng.random(self.size) >= self.target.noise.share_removed(len(draft.tokens) + 1)
        (base,) = self.target.samples([(draft.tokens, kept)], self.label)
        copies, changed = [], []
        for edit in edits:
            rows = new if edit.operation == "ins" else kept[:, edit.place]
            copies.append(_copies(draft, edit, kept[rows]))
            changed.append(rows)
        samples = self.target.samples(copies, self.label)
        return [self._measured(sample, base.take(~rows)) for sample, rows in zip(samples, changed, strict=True)]

    def _try_plans(self) -> None:
        """Compare plans of 1, 2, 3, 4, 6, ... edits of one kind, and narrow down the two that need the fewest."""
        sizes, plans = [1, 2, 3], list(self._plans())
        while sizes[-1] < self.budget:
            sizes.append(4 if sizes[-1] == 3 else sizes[-2] * 2)
        sizes = [*(size for size in sizes if size < self.budget), self.budget]
        lost: dict[int, list[int]] = {}  # the sizes at which the label loses, by the number of the plan
        for number, size in self._losing([(number, size) for number in range(len(plans)) for size in sizes], plans):
            lost.setdefault(number, []).append(size)
        for number in sorted(lost, key=lambda number: (lost[number][0], number))[:2]:
            first, *larger = lost[number]
            low = max((size for size in sizes if size < first), default=0)
            between = np.unique(np.linspace(low + 1, first, min(BISECTED, first - low)).round().astype(int)).tolist()
            promising = [size for _, size in self._losing([(number, size) for size in between], plans)]
            for size in [*promising, *larger]:
                if self._verified(plans[number](size)):
                    break

    def _losing(self, choices: Sequence[tuple[int, int]], plans: Sequence[Plan]) -> list[tuple[int, int]]:
        """Of pairs of a plan's number and a size, those whose text the label loses; compared in one batch."""
        measured = self._measure([plans[number](size) for number, size in choices]) if choices else []
        return [choice for choice, (margin, _) in zip(choices, measured, strict=True) if margin < 0]

    def _plans(self) -> Iterator[Plan]:
        """Functions from a number of edits to the text after this many edits of one kind."""
        order = np.argsort(-self.support, kind="stable").tolist()
        tokens, at = self.original, order[0] if order else 0

        def substituted(written: Sequence[Hashable], size: int) -> Tokens:
            replaced = dict(zip(order[:size], cycle(written), strict=False))
            return tuple(replaced.get(place, token) for place, token in enumerate(tokens))

        def inserted(written: Sequence[Hashable], size: int) -> Tokens:
            return (*tokens[:at], *islice(cycle(written), size), *tokens[at:])

        def deleted(size: int) -> Tokens:
            gone = set(order[:size])
            return tuple(token for place, token in enumerate(tokens) if place not in gone)

        for written in [self.words[:1], self.words[: self.settings.words]][: len(self.words)]:
            if self.threat.substitutes:
                yield partial(substituted, written)
            if self.threat.inserts:
                yield partial(inserted, written)
        if self.threat.deletes:
            yield deleted

    def _search(self, draft: Draft, depth: int) -> None:
        """Greedy search of up to ``depth`` edits."""
        seen = {draft.tokens}
        for _ in range(depth):
            edits = self._moves(draft)
            measured = self._measure_edits(draft, edits) if edits else []
            ranked = sorted(zip(measured, map(draft.edited, edits), strict=True), key=lambda entry: entry[0])
            unseen = [entry for entry in ranked if entry[1].tokens not in seen]
            if not unseen:
                return
            (margin, _), draft = unseen[0]
            if margin < 0 and self._verified(draft.tokens):
                return
            seen.add(draft.tokens)

    def _moves(self, draft: Draft) -> list[Edit]:
        """The edits that a step compares: of the tokens that speak most for the label, with the best words."""
        positions = [place for place, origin in enumerate(draft.origins) if origin >= 0]
        positions.sort(key=lambda place: -self.support[draft.origins[place]])
        positions = positions[: self.settings.positions]
        words = self.words[: self.settings.words]
        edits = []
        if self.threat.substitutes:
            edits += [Edit("sub", at, word) for at in positions for word in words if word != draft.tokens[at]]
        if self.threat.inserts:
            edits += [Edit("ins", positions[0] if positions else 0, word) for word in words]
        if self.threat.deletes:
            edits += [Edit("del", at) for at in positions]
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


def _copies(draft: Draft, edit: Edit, kept: BoolArray) -> tuple[Tokens, BoolArray]:
    """The copies of an edited text that keep the token in question; a deleted token is one that is never kept."""
    if edit.operation == "del":
        kept = kept.copy()
        kept[:, edit.place] = False
        return draft.tokens, kept
    if edit.operation == "ins":
        kept = np.insert(kept, edit.place, True, axis=1)
    return draft.edited(edit).tokens, kept


@dataclass(frozen=True)
class Vocabulary:
    """Words, most frequent first, with their scores for every class."""

    words: Sequence[Hashable]
    # shape (words, classes); a word with a higher score speaks more for the class
    scores: FloatArray = field(compare=False)  # the same words of a run have the same scores

    def against(self, label: int, rivals: Sequence[int], count: int) -> list[Hashable]:
        """The ``count`` words that speak most for a rival and against the label, best first."""
        lead = np.max([self.scores[:, rival] - self.scores[:, label] for rival in rivals], axis=0)
        order = np.argsort(-lead, kind="stable")[:count]
        return [self.words[place] for place in order]


def learn_vocabulary(certifier: Certifier, texts: Iterable[tuple[Tokens, Any]]) -> Vocabulary:
    """The vocabulary of labelled texts, ranked by the base model or, if it only votes, by frequencies in the classes.

    Args:
        certifier: the engine of the model.
        texts: the tokens and the label of every text; a label that is None or unknown counts for no class.
    """
    classes = list(certifier.classes)
    counted: Counter[Hashable] = Counter()
    by_class: list[Counter[Hashable]] = [Counter() for _ in classes]
    for tokens, label in texts:
        occurring = set(tokens)
        counted.update(occurring)
        if label in classes:
            by_class[classes.index(label)].update(occurring)
    words = sorted(counted, key=lambda word: (-counted[word], repr(word)))
    frequent = ([word for word in words if counted[word] >= LEAST_COUNT] or words)[:MOST_WORDS]
    if not frequent:
        raise ValueError("the vocabulary of an attack must hold at least one word, got none")
    scores = model_scores(certifier, frequent)
    if scores is not None:
        return Vocabulary(frequent, scores)
    table = np.array([[counts[word] for counts in by_class] for word in frequent], dtype=np.float64) + 0.5
    return Vocabulary(frequent, np.log(table / table.sum(axis=0, keepdims=True)))


def vocabulary_of(certifier: Certifier, source: Source) -> Vocabulary:
    """The vocabulary of a data file; a label that the model does not know counts for no class."""
    label_map = LabelMap(certifier.classes)

    def texts() -> Iterator[tuple[Tokens, Any]]:
        for row in source.rows():
            if isinstance(row, Row):
                label = None
                with suppress(ValueError):
                    label = None if row.label is None else label_map(row.label)
                yield certifier.unit.split(row.text), label

    return learn_vocabulary(certifier, texts())


def paddings_of(certifier: Certifier, source: Source, settings: AttackSettings) -> dict[int, list[Tokens]]:
    """What a padding attack writes around texts of each class, by its number: three kinds of text of other classes.

    A salad of the words that are at least twice as frequent in other classes, as frequent as there; whole texts of a
    data file; and a single word: the worst one that the model knows, or else the least frequent one in the class.
    """
    unit, label_map, most = certifier.unit, LabelMap(certifier.classes), settings.padding
    by_class: list[list[Tokens]] = [[] for _ in certifier.classes]
    for row in source.rows():
        if isinstance(row, Row) and row.label is not None:
            with suppress(ValueError):
                by_class[list(certifier.classes).index(label_map(row.label))].append(unit.split(row.text))
    counts = [Counter(chain.from_iterable(texts)) for texts in by_class]
    rng, found = np.random.Generator(np.random.Philox(settings.seed)), {}
    for label, own in enumerate(counts):
        texts = [text for other, each in enumerate(by_class) if other != label for text in each]
        others = Counter(chain.from_iterable(texts))
        if not others:
            raise ValueError(f"{source.name}: holds no text of another class than {certifier.classes[label]}")
        odds = {word: (n / others.total()) / ((own[word] + 0.5) / (own.total() + 1)) for word, n in others.items()}
        friendly = [word for word, ratio in odds.items() if ratio > 2] or [max(odds, key=lambda word: odds[word])]
        shares = np.array([others[word] for word in friendly]) / sum(others[word] for word in friendly)
        rivals = (number for number in range(len(counts)) if number != label)
        known = [word for rival in rivals if (word := certifier.oracle.worst_token(label, rival, unit)) is not None]
        order = rng.permutation(len(texts)).tolist()
        whole = list(islice(chain.from_iterable(texts[place] for place in cycle(order)), most))
        found[label] = [
            tuple(friendly[place] for place in rng.choice(len(friendly), most, p=shares)),
            tuple(whole),
            tuple((known or [max(odds, key=lambda word: odds[word])])[:1] * most),
        ]
    return found


def padded(text: Any, padding: Tokens, unit: Unit, *, glued: bool) -> Any:
    """The text between two copies of the padding; ``glued`` leaves out the white space between words."""
    around = unit.join(padding)
    return ("" if glued or unit.kind != "word" else " ").join((around, text, around))


def model_scores(certifier: Certifier, words: Sequence[Hashable]) -> FloatArray | None:
    """What a single word adds to the scores of an empty copy, shape (words, classes); None if the model only votes."""
    tables = []
    for start in range(0, len(words), CHUNK):
        chunk = tuple(words[start : start + CHUNK])
        kept = np.eye(len(chunk) + 1, len(chunk), dtype=np.bool_)  # the last copy is empty
        scored = certifier.oracle.copy_scores([Request(certifier.prepare_tokens(chunk, "the vocabulary"), kept)])
        if scored is None:
            return None
        table = np.asarray(scored[0], dtype=np.float64)
        tables.append(table[:-1] - table[-1])
    return np.concatenate(tables)


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable], ops: str | Sequence[str] = "edit") -> float:
    """The least number of allowed edits that turn one token sequence into another; infinite if none do.

    With all three operations it is the Levenshtein distance in tokens, computed exactly.

    Args:
        first: the tokens of the original.
        second: the tokens of the edited text.
        ops: "edit", or some of "del", "ins", "sub".

    >>> edit_distance("the film was good".split(), "the film was not bad".split())
    2.0
    >>> edit_distance("abc", "abd", ["del", "ins"]), edit_distance("abc", "ab", ["sub"])
    (2.0, inf)
    """
    threat = Threat(ops)
    numbers: dict[Hashable, int] = {}
    a, b = (
        np.array([numbers.setdefault(token_key(token), len(numbers)) for token in tokens], dtype=np.int64)
        for tokens in (first, second)
    )
    start = _common_prefix(a, b)
    end = _common_prefix(a[start:][::-1], b[start:][::-1])
    a, b = a[start : len(a) - end], b[start : len(b) - end]
    positions = np.arange(len(b) + 1, dtype=np.float64)
    row = positions if threat.inserts else np.where(positions == 0, 0.0, inf)
    for token in a:
        diagonal = row[:-1] + np.where(b == token, 0.0, 1.0 if threat.substitutes else inf)
        following = np.full(len(row), inf)
        following[1:] = diagonal
        if threat.deletes:
            following = np.minimum(following, row + 1)
        if threat.inserts:  # the best place to the left, plus an insertion for every place in between
            following = np.minimum.accumulate(following - positions) + positions
        row = following
    return float(row[-1])


def _common_prefix(a: IntArray, b: IntArray) -> int:
    """The number of equal tokens at the start; removing them changes no distance."""
    shared = min(len(a), len(b))
    different = np.flatnonzero(a[:shared] != b[:shared])
    return int(different[0]) if len(different) else shared
