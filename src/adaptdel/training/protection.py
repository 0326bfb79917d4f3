"""One-sided protection: the decision threshold of one class of two, with a proved rate of false positives.

A model that protects "spam" answers "spam" if its score for spam exceeds a threshold, which is chosen so that few other
texts get that answer. A certificate for "spam" then says that up to r edits cannot push the probability to the
threshold or below, instead of 1/2. That is what RS-Del does for malware. For an exact model, `choose_bound` takes the
bound of token scores that suits the class.

The rate is about the answers that ``predict`` and ``certify`` give: the model itself is asked for them, at each
threshold that is tried. It holds for that model with that sampling plan, and for no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from math import ceil, floor, log
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from adaptdel import plots
from adaptdel.certification.certifier import Certifier
from adaptdel.certification.sampling import AT_ONCE, EXACT_COPIES
from adaptdel.core.checks import BoolArray, check_int, check_real
from adaptdel.core.threat import Threat
from adaptdel.models.additive import AdditiveClassifier, HeldOut
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.text.data import FREE, PROOF, Examples, TextHashes, known_texts, row_hashes, text_hashes
from adaptdel.text.units import check_unit

CONFIDENCE = 0.95  # of the bound on the rate of false positives
LEAST_SHARE = 0.01  # of the votes that decide for a class, at least
CERTIFIED = 100  # texts of the protected class that are drawn and certified, at most
RADII = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500)  # up to the first that no text reaches
MOST_CHARACTERS = 1000  # edits of characters that the sentence counts
TOKENS = {"word": "words", "char": "characters", "byte": "bytes"}
SHOWN_RADIUS = 2  # the one of `RADII` in the sentence
DETECTION = "detection.png"  # the figure in the folder of a model


@dataclass
class SmoothedScores:
    """The score of a class of a smoothed classifier: its share of votes, of as many votes as it takes to answer.

    With adaptive sampling, the votes on a text end as soon as its share is clearly on one side of the threshold.
    Whatever ends them at a threshold with this class as the answer does so at every lower one, too. Copies of short
    texts may be enumerated: ``predict`` does so at once or not at all, ``certify`` also after some votes. Where the
    answers could differ, a text exceeds a threshold if either does.
    """

    model: SmoothedClassifier  # the model
    number: int  # the number of the class, 0 or 1
    certified = CERTIFIED

    @property
    def grid(self) -> tuple[float, float, float]:
        """The lowest threshold, 1 in 100 votes, the highest, and how far apart two are at least: half a vote."""
        return LEAST_SHARE, float(np.nextafter(1.0, 0.0)), 0.5 / self.model.n_select

    def exceed(self, texts: Sequence[Any], limit: float) -> BoolArray:
        """Which texts have a score above ``limit``, shape (texts,), by the answers of the model itself."""
        asked = copy(self.model)
        SmoothedScores(asked, self.number).set_threshold(limit)
        certifier = asked.certifier(n_estimate=0)
        exceeds = self._answers(certifier, texts)
        if certifier.plan.exact:
            noise, split = certifier.rule.noise, certifier.unit.split
            least = min(AT_ONCE, certifier.plan.n_select)
            short = [n for n, text in enumerate(texts) if least < noise.choices(len(split(text))) <= EXACT_COPIES]
            exact = certifier.with_plan(replace(certifier.plan, at_once=EXACT_COPIES, n_estimate=EXACT_COPIES))
            exceeds[short] |= self._answers(exact, [texts[n] for n in short])
        return exceeds

    def _answers(self, certifier: Certifier, texts: Sequence[Any]) -> BoolArray:
        inputs = (certifier.prepare(text, f"text {number}") for number, text in enumerate(texts))
        answers = {number: tally.label for number, tally in certifier.votes(inputs)}
        return np.array([answers[number] == self.number for number in range(len(texts))], dtype=np.bool_)

    def set_threshold(self, limit: float) -> None:
        """Make the class the answer where its score exceeds ``limit``; the threshold of a model is that of class 1."""
        self.model.threshold = limit if self.number == 1 else 1.0 - limit


@dataclass
class ExactScores:
    """The score of a class of an additive classifier: an integer, the score minus that of the other class."""

    model: AdditiveClassifier  # the model
    number: int  # the number of the class, 0 or 1
    certified = None

    @property
    def grid(self) -> tuple[float, float, float]:
        """All integers that a threshold can be; fractions stand for the integer below."""
        return -(2.0**53) + 1, 2.0**53 - 1, 1.0

    def exceed(self, texts: Sequence[Any], limit: float) -> BoolArray:
        """From the scores themselves."""
        scores = self.model.decision_function(list(texts))
        return np.asarray((scores if self.number == 1 else -scores) > floor(limit), dtype=np.bool_)

    def set_threshold(self, limit: float) -> None:
        """The threshold of a model is that of class 1, which loses where its score is not above it."""
        self.model.threshold = floor(limit) if self.number == 1 else -floor(limit) - 1


SCORES: dict[str, Any] = {"smoothed": SmoothedScores, "additive": ExactScores}  # by the kind of model


@dataclass(frozen=True)
class Protection:
    """A decision threshold that protects one class, with what is proved about its false positives.

    ``certified`` is the fraction of the protected texts that are detected whatever an attacker does, by number of
    edits; of a smoothed classifier it is measured on `CERTIFIED` of them, drawn at random.
    """

    label: Any  # the protected class
    max_false_positives: float  # the rate that was asked for
    threshold: float  # of the model
    limit: float  # the score above which the class is the answer
    negatives: int  # held-out texts of the other class
    false_positives: int  # how many of them get the protected answer
    upper: float  # with a confidence of 95%, the rate of false positives on new texts is at most this
    positives: int  # held-out texts of the protected class
    detected: int  # how many of them get the protected answer
    certified: Mapping[str, float]
    characters: Mapping[str, float]  # the same by the number of edited characters, where these are known
    same: int  # so many edited characters are withstood by at least as many texts as `SHOWN_RADIUS` edits; 0 for none
    tokens: str  # what the edits change, in the plural
    ops: Sequence[str]  # the operations of the attacker; edits of characters are of any kind
    plan: Mapping[str, Any]  # all that the answers of the model depend on: the rate is about these answers only

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with the sentence."""
        return asdict(self) | {"sentence": self.sentence()}

    def sentence(self) -> str:
        """What was chosen, and what is known about it."""
        rate, upper = 100 * self.false_positives / self.negatives, 100 * self.upper
        text = f"at {rate:.3g}% false positives (95% confidence: at most {upper:.3g}%) the model catches "
        if not self.positives:
            return f"{text}an unknown part of {self.label!s}: the data holds no text of this class"
        text += f"{100 * self.detected / self.positives:.1f}% of {self.label!s}"
        if not self.certified:
            return text
        share, noun = 100 * self.certified[str(SHOWN_RADIUS)], "character" if self.same == 1 else "characters"
        same = f" (or {self.same} {noun})" if self.same and self.tokens != "characters" else ""
        changed = f"{same} of each text are changed" if len(self.ops) == 3 else f" an attacker {Threat(self.ops).verbs}"
        return f"{text}, and {share:.1f}% whatever {SHOWN_RADIUS} {self.tokens}{changed}"


def protect(
    model: SmoothedClassifier | AdditiveClassifier,
    texts: Sequence[Any],
    labels: Sequence[Any],
    *,
    label: Any,
    max_false_positives: float,
    certify: int | None = None,
    held_out: bool = False,
) -> Protection:
    """Choose the decision threshold of a model on held-out texts, and set it.

    All of them count, also those that equal a text that trained the model: new texts repeat as well.

    Args:
        model: a fitted model of two classes; its ``threshold``, ``protection_`` and ``texts_`` are set.
        texts: other rows than those that trained or calibrated the model, drawn like the texts that it will answer.
        labels: their labels.
        label: the class whose answers are protected from being changed.
        max_false_positives: the rate of texts of the other class that may get its answer.
        certify: how many texts of the class are certified to report radii, 0 for none; by default `CERTIFIED`, and all
            of them for exact certificates.
        held_out: whether these rows are known to be others, even if all of their texts are.
    """
    if not held_out and holds_used_rows(model, texts):
        raise ValueError("texts must be others than the model was trained or calibrated on, got those")
    number = class_number(model.base_classifier().classes_ or [], label)
    name = (model.base_classifier().classes_ or [])[number]
    own = np.array([value == name for value in labels], dtype=np.bool_)
    if len(own) != len(texts):
        raise ValueError(f"labels must hold one label for each of the {len(texts)} texts, got {len(own)}")
    if strange := [value for value in labels if value not in (model.base_classifier().classes_ or [])]:
        raise ValueError(f"labels must be classes of the model, got {strange[0]!r}")
    positives, negatives = ([texts[n] for n in np.flatnonzero(mask).tolist()] for mask in (own, ~own))
    allowed = allowed_false_positives(len(negatives), max_false_positives)
    scores = SCORES[model.kind](model, number)
    limit, false_positives = lowest_threshold(scores, negatives, allowed)
    # The threshold is an order statistic of the scores: the rate above it follows a beta distribution, whatever the
    # number of texts above it, and a bound for that number would fail more often. The lowest threshold is fixed.
    judged = false_positives if limit == scores.grid[0] else allowed
    detected = int(scores.exceed(positives, limit).sum()) if positives else 0
    scores.set_threshold(limit)
    most = scores.certified if certify is None else check_int("certify", certify)
    drawn = np.sort(np.random.default_rng(0).permutation(len(positives))[:most]).tolist()
    certificates: Sequence[Any] = model.certify([positives[n] for n in drawn]) if drawn else []
    detections = [each.label == name for each in certificates]
    reached = np.array([each.radius for each in certificates], dtype=np.int64)[detections]
    known = [each.character_radius for each in certificates if each.character_radius is not None]
    reached_characters = np.array(known, dtype=np.int64)[detections if known else []]
    certified = shares(reached, len(certificates))
    enough = [r for r in range(MOST_CHARACTERS) if (reached_characters > r).sum() >= (reached >= SHOWN_RADIUS).sum()]
    chosen = Protection(
        label=name,
        max_false_positives=max_false_positives,
        threshold=float(model.threshold or 0.0),
        limit=limit,
        negatives=len(negatives),
        false_positives=false_positives,
        upper=float(beta.ppf(CONFIDENCE, judged + 1, len(negatives) - judged)),
        positives=len(positives),
        detected=detected,
        certified=certified,
        characters=shares(reached_characters, len(known)),
        same=len(enough) if (reached >= SHOWN_RADIUS).any() else 0,
        tokens=TOKENS.get(str((check_unit(model.unit).description() or {}).get("kind")), "tokens"),
        ops=model.run_settings()["ops"],
        plan=model.answer_plan(),
    )
    model.protection_ = chosen.to_dict()
    model.texts_ = {**(getattr(model, "texts_", None) or {}), "threshold": text_hashes(texts)}
    return chosen


def choose_bound(model: AdditiveClassifier, held: HeldOut, label: Any, share: float, max_loss: float) -> None:
    """Use the bound of token scores that suits a protected class; it is chosen before any text proves the rate.

    For each bound, the threshold is taken that a share of the held-out texts of the other class exceed: the share that
    the proof will allow, which is less than the rate that it proves. Of the bounds under which the part of the class
    that is detected whatever `SHOWN_RADIUS` tokens are changed is at most ``max_loss`` percentage points below the
    best, the one with the largest mean radius is used.
    """
    number = class_number(model.base_classifier().classes_ or [], label)
    positives, negatives = (
        [held.texts[n] for n in np.flatnonzero(mask).tolist()]
        for mask in (held.answers == number, held.answers != number)
    )
    if not positives or not negatives:
        return
    measured = []
    for point in range(len(model.front_)):
        tried = held.model(model, point)
        margins = np.sort(tried.decision_function(negatives) * (1 if number == 1 else -1))[::-1]
        ExactScores(tried, number).set_threshold(margins[floor(share * len(negatives))])
        certificates = tried.certify(positives)
        detected = [each.answer == number for each in certificates]
        radii = np.where(detected, [each.radius for each in certificates], -1)
        measured.append(((radii >= SHOWN_RADIUS).mean(), np.maximum(radii, 0).mean()))
    least = max(detection for detection, _ in measured) - max_loss / 100 - 1e-12
    allowed = [point for point, (detection, _) in enumerate(measured) if detection >= least]
    model.use(max(allowed, key=lambda point: measured[point][1]))


def shares(radii: npt.NDArray[np.int64], count: int) -> dict[str, float]:
    """The fraction of ``count`` texts that have one of these radii and reach each of `RADII`, until none does."""
    least = next((place for place, radius in enumerate(RADII) if not (radii >= radius).any()), len(RADII))
    shown = RADII[: max(least + 1, RADII.index(SHOWN_RADIUS) + 1)]
    return {str(radius): float((radii >= radius).sum() / count) for radius in shown} if count else {}


def class_number(classes: Sequence[Any], label: Any) -> int:
    """The number of the class to protect; ValueError unless there are two classes and it is one of them."""
    names = list(classes)
    if len(names) != 2:
        raise ValueError(f"a protected class needs a model of two classes, got {len(names)}")
    matching = [number for number, name in enumerate(names) if name == label or str(name) == str(label)]
    if not matching:
        raise ValueError(f"class must be one of {names[0]!r} and {names[1]!r}, got {label!r}")
    return matching[0]


def seen_texts(model: Any, texts: Sequence[Any]) -> BoolArray:
    """Which texts influenced a model: it was trained or calibrated on them, or they decided which weights were kept."""
    return known_texts(texts, *_used(model))


def _used(model: Any) -> list[TextHashes]:
    known = getattr(model, "texts_", None) or {}
    return [hashes for use, hashes in known.items() if use not in (*FREE, "threshold")]


def holds_used_rows(model: Any, texts: Sequence[Any]) -> bool:
    """Whether texts seem to be the rows that trained or calibrated a model: all of these are there, or no others."""
    own = text_hashes(texts)
    return bool(seen_texts(model, texts).all()) or any(len(used) and np.isin(used, own).all() for used in _used(model))


def proof_rows(model: Any, examples: Examples) -> BoolArray:
    """Which rows of a file `adaptdel train --protect` held out, shape (rows,); none if one of those rows is missing."""
    kept = (getattr(model, "texts_", None) or {}).get(PROOF, np.zeros(0, dtype=np.uint64))
    found = np.isin(row_hashes(examples), kept)
    return np.asarray(found & (found.sum() == len(kept)), dtype=np.bool_)


def needed_negatives(rate: float) -> int:
    """How many held-out texts of the other class can prove a rate of false positives, if none gets the answer.

    >>> [needed_negatives(rate) for rate in (0.05, 0.01, 0.001)]
    [59, 299, 2995]
    """
    return ceil(log(1 - CONFIDENCE) / log(1 - rate))


def allowed_false_positives(negatives: int, rate: float) -> int:
    """How many of the texts of the other class may get the protected answer so that a rate is proved.

    >>> [allowed_false_positives(number, 0.01) for number in (300, 2000)]
    [0, 12]
    """
    accepted = "a rate between 0 and 1, such as 0.01"
    check_real("max_false_positives", rate, accepted=accepted, least=0.0, most=1.0, open_ends=True)
    if negatives < needed_negatives(rate):
        raise ValueError(
            f"{negatives} texts of the other class cannot prove a rate of {100 * rate:.3g}% false positives: give at "
            f"least {needed_negatives(rate):,}, better {ceil(10 / rate):,}, or ask for a higher rate"
        )
    number = 0
    while number + 1 < negatives and beta.ppf(CONFIDENCE, number + 2, negatives - number - 1) <= rate:
        number += 1
    return number


def lowest_threshold(scores: Any, negatives: Sequence[Any], allowed: int) -> tuple[float, int]:
    """The lowest threshold that at most ``allowed`` texts exceed, and how many do; bisected to the scores' grid.

    A text that exceeds a threshold exceeds all lower ones, so that each step asks about the undecided texts only.
    """
    low, high, resolution = scores.grid
    undecided = np.arange(len(negatives))

    def exceeding(limit: float) -> BoolArray:
        return scores.exceed([negatives[n] for n in undecided.tolist()], limit)

    lowest = exceeding(low)
    if lowest.sum() <= allowed:
        return low, int(lowest.sum())
    undecided = undecided[lowest]
    highest = exceeding(high)
    above = int(highest.sum())
    if above > allowed:
        raise ValueError(
            f"no threshold is high enough: {above} texts of the other class have the highest score, and {allowed} may: "
            "ask for a higher rate, or train a better model"
        )
    undecided = undecided[~highest]
    while high - low > resolution and len(undecided):
        middle = (low + high) / 2
        exceeds = exceeding(middle)
        if above + exceeds.sum() <= allowed:
            high, above, undecided = middle, above + int(exceeds.sum()), undecided[~exceeds]
        else:
            low, undecided = middle, undecided[exceeds]
    return high, above


@plots.optional
def plot_detection(record: Mapping[str, Any], path: Path) -> None:
    """Plot the detected part of the protected class against the number of edits."""
    figure = plots.new_figure(6, 3.6)
    axes, start = figure.subplots(), record["detected"] / max(record["positives"], 1)
    tokens = record["tokens"]
    tokens += f" that an attacker {Threat(record['ops']).verbs}" if len(record["ops"]) < 3 else ""
    curves = {"characters": record["characters"], tokens: record["certified"]}
    for (noun, curve), colour in zip(curves.items(), ("#1d6f65", "#c8553d"), strict=False):
        if curve:
            edits, fractions = [0, *map(int, curve)], [100 * value for value in (start, *curve.values())]
            axes.plot(edits, fractions, marker="o", ms=3, lw=1.6, color=colour, label=noun)
    axes.set_xscale("symlog", linthresh=1)
    axes.set(xlim=(0, None), ylim=(0, 103), xlabel="edits of each text", ylabel=f"% of {record['label']} detected")
    axes.set_title(f"at most {100 * record['upper']:.2g}% false positives", fontsize=10)
    axes.legend(frameon=False, title="whatever is changed of its")
    plots.save(figure, path)
