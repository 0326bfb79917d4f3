"""Exact certificates against the truth: every text within reach, over small vocabularies and alphabets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest

from adaptdel.core import margins
from adaptdel.core.checks import BoolArray, IntArray
from adaptdel.core.threat import EVERY_SET, Threat

LONGEST = 5  # tokens of the texts that are enumerated
FAR = 99  # a distance that cannot be bridged


@cache
def texts(size: int, longest: int = LONGEST) -> list[tuple[int, ...]]:
    return [text for length in range(longest + 1) for text in product(range(size), repeat=length)]


def edit_distances(rows: list[tuple[int, ...]], others: list[tuple[int, ...]], ops: tuple[str, ...]) -> IntArray:
    """The edit distance from every row to every other text, by the textbook's recursion; FAR if there is no way."""
    table = np.full((len(rows), len(others)), FAR)
    costs = {op: 1 if op in ops else FAR for op in ("del", "ins", "sub")}
    for i, source in enumerate(rows):
        known: dict[tuple[int, ...], list[int]] = {(): [min(FAR, k * costs["del"]) for k in range(len(source) + 1)]}
        for j, text in enumerate(others):  # shorter texts first: the prefix is known
            if text:
                above = known[text[:-1]]
                line = [min(FAR, above[0] + costs["ins"])]
                for k, token in enumerate(source, start=1):
                    same = above[k - 1] + (0 if token == text[-1] else costs["sub"])
                    line.append(min(FAR, same, above[k] + costs["ins"], line[-1] + costs["del"]))
                known[text] = line
            table[i, j] = known[text][-1]
    return table


@cache
def distances(size: int, length: int, ops: tuple[str, ...]) -> IntArray:
    return edit_distances(texts(size, length), texts(size), ops)


@dataclass
class Model:
    """A random additive classifier over a small vocabulary, with many ties."""

    scores: IntArray  # (vocabulary, classes)
    offsets: IntArray  # (classes,)

    @classmethod
    def draw(cls, rng: np.random.Generator, size: int, classes: int) -> Model:
        spread = int(rng.integers(1, 6))
        offsets = rng.integers(-2 * spread, 2 * spread + 1, classes)
        return cls(rng.integers(-spread, spread + 1, (size, classes)), offsets)

    def answers(self, counts: IntArray) -> IntArray:
        """The answers to texts with these counts of tokens; the first class of the largest score."""
        return np.asarray(np.argmax(counts @ self.scores + self.offsets, axis=1))

    def reach(self, answer: int) -> IntArray:
        """The most that a token of the vocabulary adds to each class over the answer."""
        return np.asarray((self.scores - self.scores[:, [answer]]).max(axis=0))


@cache
def count_table(size: int) -> IntArray:
    return np.array([[text.count(token) for token in range(size)] for text in texts(size)])


def check_radii(models: int, seed: int) -> int:
    """Radii of random models on every short text are the true ones, for every set of operations."""
    rng, certificates = np.random.default_rng(seed), 0
    for _ in range(models):
        size, classes, length = int(rng.integers(1, 4)), int(rng.integers(2, 6)), 3
        model, counts = Model.draw(rng, size, classes), count_table(size)
        answers = model.answers(counts)
        tables = {ops: distances(size, length, ops) for ops in EVERY_SET}
        for row, text in enumerate(texts(size, length)):
            answer = int(answers[row])
            token_scores = model.scores[list(text)].reshape(-1, classes)
            assert margins.answer(model.offsets + token_scores.sum(axis=0)) == answer
            rivals = margins.margins(token_scores, model.offsets, answer, model.reach(answer))
            certificates += 1
            for ops, table in tables.items():
                threat = Threat(ops)
                nearest = int(table[row][answers != answer].min(initial=FAR))
                radius = margins.radius(rivals, threat, len(text))
                # Texts of up to LONGEST tokens are known: a longer counterexample is farther away than these.
                horizon = LONGEST - len(text) if threat.inserts else len(text)
                assert min(radius, horizon) == min(nearest - 1, horizon), (model, text, ops)
    return certificates


@pytest.mark.parametrize(
    ("models", "seeds", "least"),
    [(150, [1], 1000), pytest.param(1500, range(2, 6), 100_000, marks=pytest.mark.slow)],
)
def test_radii_are_the_true_ones(models: int, seeds: Sequence[int], least: int) -> None:
    assert sum(check_radii(models, seed) for seed in seeds) > least


@pytest.mark.parametrize("seed", range(3))
def test_the_frontier_is_the_true_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(150):
        size, classes = int(rng.integers(1, 4)), int(rng.integers(2, 5))
        model = Model.draw(rng, size, classes)
        text = tuple(rng.integers(0, size, int(rng.integers(0, 4))).tolist())
        token_scores = model.scores[list(text)].reshape(-1, classes)
        answer = margins.answer(model.offsets + token_scores.sum(axis=0))
        reach = np.maximum(model.reach(answer), 0)  # a token without meaning can always be written
        rivals = margins.margins(token_scores, model.offsets, answer, reach)
        ops = EVERY_SET[int(rng.integers(len(EVERY_SET)))]
        claimed = margins.frontier(rivals, Threat(ops), len(text))
        deletions, insertions, substitutions = (
            range(1 if op not in ops else 5 if op == "ins" else len(text) + 1) for op in ("del", "ins", "sub")
        )
        cells = [(d, i, s) for d in deletions for i in insertions for s in substitutions]
        reachable = [cell for cell in cells if cell[0] + cell[2] <= len(text)]
        unharmed = {cell for cell in reachable if survives(model, text, answer, cell)}
        safe = {cell for cell in reachable if all(c in unharmed for c in reachable if is_within(c, cell))}
        assert {cell for cell in reachable if any(is_within(cell, triple) for triple in claimed)} == safe
        assert not any(is_within(a, b) for a in claimed for b in claimed if a != b)


def is_within(cell: tuple[int, int, int], triple: tuple[int, int, int]) -> bool:
    return all(a <= b for a, b in zip(cell, triple, strict=True))


def survives(model: Model, text: tuple[int, ...], answer: int, cell: tuple[int, int, int]) -> bool:
    """Whether no choice of d deletions, i insertions and s substitutions changes the answer, by trying all."""
    deletions, insertions, substitutions = cell
    written = [*map(tuple, model.scores.tolist()), (0,) * len(model.offsets)]
    for chosen in product("kds", repeat=len(text)):
        if chosen.count("d") != deletions or chosen.count("s") != substitutions:
            continue
        kept = model.scores[[token for token, fate in zip(text, chosen, strict=True) if fate == "k"]].sum(axis=0)
        totals = {tuple((model.offsets + kept).tolist())}
        for _ in range(insertions + substitutions):
            totals = {tuple(a + b for a, b in zip(total, new, strict=True)) for total in totals for new in written}
        if any(max(range(len(total)), key=lambda c: (total[c], -c)) != answer for total in totals):
            return False
    return True


@pytest.mark.parametrize("restricted", ["immovable", "synonyms", "both"])
def test_restricted_attackers(restricted: str) -> None:
    """Immovable tokens stay where they are; a substitution takes a synonym. All combinations are tried."""
    rng = np.random.default_rng(len(restricted))
    for _ in range(120):
        size, classes, length = 4, int(rng.integers(2, 4)), int(rng.integers(1, 4))
        model = Model.draw(rng, size, classes)
        text = rng.integers(0, size, length)
        token_scores = model.scores[text]
        answer = margins.answer(model.offsets + token_scores.sum(axis=0))
        touchable = rng.random(length) < 0.6 if restricted != "synonyms" else None
        synonyms = rng.random((size, size)) < 0.4 if restricted != "immovable" else np.ones((size, size), dtype=bool)
        synonyms |= np.eye(size, dtype=bool)
        gaps = model.scores - model.scores[:, [answer]]
        replacements = np.stack([gaps[synonyms[token]].max(axis=0) for token in text])
        rivals = margins.margins(
            token_scores, model.offsets, answer, model.reach(answer), touchable=touchable, replacements=replacements
        )
        for ops in EVERY_SET:
            reached = changed_after(model, text.tolist(), answer, ops, touchable, synonyms)
            radius = margins.radius(rivals, Threat(ops), length)
            assert min(radius, 3) == min(reached - 1, 3 if "ins" in ops else length)
            if min(rival.slack for rival in rivals) >= 0:
                # Sound, if not complete: each triple of a frontier is certified.
                for deletions, insertions, substitutions in margins.frontier(rivals, Threat(ops), length):
                    alone = [("del", deletions), ("ins", insertions), ("sub", substitutions)]
                    assert all(margins.radius(rivals, Threat([op]), length) >= edits for op, edits in alone)


def changed_after(
    model: Model,
    text: list[int],
    answer: int,
    ops: tuple[str, ...],
    touchable: BoolArray | None,
    synonyms: BoolArray,
) -> int:
    """The fewest edits, at most 4, that change the answer, over all fates of all tokens."""
    fates: list[list[tuple[int, tuple[int, ...]]]] = []  # of each token: edits, and the scores that it then adds
    for position, token in enumerate(text):
        options = [(0, tuple(model.scores[token].tolist()))]
        if touchable is None or touchable[position]:
            if "del" in ops:
                options.append((1, (0,) * len(model.offsets)))
            if "sub" in ops:
                options += [(1, tuple(model.scores[new].tolist())) for new in np.flatnonzero(synonyms[token])]
        fates.append(options)
    best = FAR
    for fate in product(*fates):
        edits = sum(cost for cost, _ in fate)
        totals = {tuple((model.offsets + np.array([scores for _, scores in fate]).sum(axis=0)).tolist())}
        for inserted in range(4 - edits + 1):
            if any(max(range(len(total)), key=lambda c: (total[c], -c)) != answer for total in totals):
                best = min(best, edits + inserted)
                break
            if "ins" not in ops:
                break
            rows = model.scores.tolist()
            totals = {tuple(a + b for a, b in zip(total, row, strict=True)) for total in totals for row in rows}
    return best


def character_distances(alphabet: str, longest: int) -> tuple[list[str], IntArray]:
    listed = ["".join(text) for length in range(longest + 1) for text in product(alphabet, repeat=length)]
    coded = [tuple(map(ord, text)) for text in listed]
    return listed, edit_distances(coded, coded, ("del", "ins", "sub"))


@pytest.mark.parametrize(("alphabet", "longest"), [("ab ", 4), ("a \t", 4), ("a ", 6)])
def test_what_character_edits_do_to_words(alphabet: str, longest: int) -> None:
    """r edits take out at most 2r − a words and put in at most r + a, for some a: the claim of `character_radius`."""
    listed, table = character_distances(alphabet, longest)
    words = [Counter(text.split()) for text in listed]
    reached = set()
    for (i, source), (j, target) in product(enumerate(words), repeat=2):
        r = int(table[i, j])
        gone, new = (source - target).total(), (target - source).total()
        assert any(gone <= 2 * r - a and new <= r + a for a in range(r + 1)), (listed[i], listed[j])
        reached.add((r, gone, new))
    assert {(1, 1, 2), (1, 2, 1), (1, 0, 1), (1, 1, 0)} <= reached  # no smaller claim would do


def check_characters(models: int, seed: int, alphabet: str, longest: int) -> tuple[int, int]:
    """Character radii of random models of words never exceed the truth; how many were checked, and were reached."""
    listed, table = character_distances(alphabet, longest)
    vocabulary = sorted({word for text in listed for word in text.split()})
    counts = np.array([[text.split().count(word) for word in vocabulary] for text in listed])
    rng, checked, reached = np.random.default_rng(seed), 0, 0
    for _ in range(models):
        model = Model.draw(rng, len(vocabulary), int(rng.integers(2, 4)))
        answers = model.answers(counts)
        for row, text in enumerate(listed):
            answer = int(answers[row])
            scores = model.scores[[vocabulary.index(word) for word in text.split()]].reshape(-1, len(model.offsets))
            rivals = margins.margins(scores, model.offsets, answer, model.reach(answer))
            radius = margins.character_radius(rivals, len(scores))
            nearest = int(table[row][answers != answer].min(initial=10**6))
            assert radius < nearest, (model, text)
            checked, reached = checked + 1, reached + (radius == nearest - 1)
    return checked, reached


@pytest.mark.parametrize(
    ("models", "alphabet", "longest"),
    [(30, "ab ", 4), *(pytest.param(60, each, 5, marks=pytest.mark.slow) for each in ("ab ", "a \t", "ab\n"))],
)
def test_character_radii_are_sound(models: int, alphabet: str, longest: int) -> None:
    checked, reached = check_characters(models, longest, alphabet, longest)
    assert checked > 1000
    assert reached > checked / (3 if longest == 4 else 100)


def check_runs(models: int, seed: int) -> tuple[int, int]:
    """Radii of random models of runs of tokens never exceed the truth; how many were checked, and were reached."""
    rng, checked, reached = np.random.default_rng(seed), 0, 0
    for _ in range(models):
        size, ngram, classes = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(2, 4))
        spread, pad = int(rng.integers(1, 4)), (-1,) * (ngram - 1)
        offsets = rng.integers(-8 * spread, 8 * spread + 1, classes)
        every = list(product(range(-1, size), repeat=ngram))
        scores = dict(zip(every, rng.integers(-spread, spread + 1, (len(every), classes)), strict=True))
        table = np.array(list(scores.values()))
        padded = [(*pad, *text, *pad) for text in texts(size)]
        tables = [
            np.array([scores[text[place : place + ngram]] for place in range(len(text) - ngram + 1)]) for text in padded
        ]
        answers = np.array([margins.answer(offsets + rows.sum(axis=0)) for rows in tables])
        for row, text in enumerate(texts(size, 3)):
            answer = int(answers[row])
            reach = (table - table[:, [answer]]).max(axis=0)
            rivals = margins.margins(tables[row], offsets, answer, reach, ngram=ngram)
            assert all(len(rival.deletion) == len(rival.substitution) == len(text) for rival in rivals)
            for ops in EVERY_SET:
                radius = margins.radius(rivals, Threat(ops), len(text))
                near = distances(size, 3, ops)[row] <= radius
                assert (answers[near] == answer).all(), (scores, offsets, text, ops)
                nearest = int(distances(size, 3, ops)[row][answers != answer].min(initial=FAR))
                checked, reached = checked + 1, reached + (radius == nearest - 1)
            for triple in margins.frontier(rivals, Threat("edit"), len(text)):
                if sum(triple) <= 3:
                    changed = within(text, size, triple)
                    assert all(answers[texts(size).index(t)] == answer for t in changed if len(t) <= LONGEST)
    return checked, reached


@cache
def within(text: tuple[int, ...], size: int, triple: tuple[int, int, int]) -> set[tuple[int, ...]]:
    """The texts that at most so many deletions, insertions and substitutions make, in any order."""
    deletions, insertions, substitutions = triple
    found = {text}
    if deletions:
        for t in within(text, size, (deletions - 1, insertions, substitutions)):
            found |= {t, *(t[:i] + t[i + 1 :] for i in range(len(t)))}
    if insertions:
        for t in within(text, size, (deletions, insertions - 1, substitutions)):
            found |= {t, *((*t[:i], new, *t[i:]) for i in range(len(t) + 1) for new in range(size))}
    if substitutions:
        for t in within(text, size, (deletions, insertions, substitutions - 1)):
            found |= {t, *((*t[:i], new, *t[i + 1 :]) for i in range(len(t)) for new in range(size))}
    return found


@pytest.mark.parametrize(
    ("models", "seed"), [(40, 0), *(pytest.param(500, seed, marks=pytest.mark.slow) for seed in range(1, 5))]
)
def test_radii_of_runs_are_sound(models: int, seed: int) -> None:
    checked, reached = check_runs(models, seed)
    assert checked > 50 * models
    assert reached > checked / 10  # and no trivial ones


def test_sums_that_exceed_64_bits_are_refused() -> None:
    zeros = np.zeros(2, dtype=np.int64)
    margins.check_sums(2, np.full((2, 2), 2**40), zeros, zeros)
    for ngram, largest in ((1, 2**60), (2**10, 2**40)):
        with pytest.raises(ValueError, match="scores"):
            margins.check_sums(2, np.full((2, 2), largest), zeros, zeros, ngram=ngram)
