"""One-sided protection: the decision threshold of one class of two, with a proved rate of false positives.

A model that protects "spam" answers "spam" if its score for spam exceeds a threshold, which is chosen so that few other
texts get that answer. A certificate for "spam" then says that up to r edits cannot push the probability to the
threshold or below, instead of 1/2. That is what RS-Del does for malware. The filter of an
exact model, which may flag a text by its best segment, is chosen by `adaptdel.training.choice`.

The rate is about the answers that ``predict`` and ``certify`` give: the model itself is asked for them, at each
threshold that is tried. It holds for that model with that sampling plan, and for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, log
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import beta

from adaptdel import plots
from adaptdel.certification.certificate import Certificate
from adaptdel.core.checks import BoolArray, check_int, check_real
from adaptdel.core.threat import Threat
from adaptdel.models.estimator import ClassScores, TextEstimator
from adaptdel.text.data import FREE, PROOF, DrawnRows, Examples, TextHashes, known_texts, row_hashes, text_hashes
from adaptdel.text.units import check_unit

CONFIDENCE = 0.95  # of the bound on the rate of false positives
RADII = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500)  # up to the first that no text reaches
MOST_CHARACTERS = 1000  # edits of characters that the sentence counts
TOKENS = {"word": "words", "char": "characters", "byte": "bytes"}
SHOWN_RADIUS = 2  # the one of `RADII` in the sentence
DETECTION = "detection.png"  # the figure in the folder of a model


@dataclass(frozen=True)
class Protection:
    """A decision threshold that protects one class, with what is proved about its false positives.

    ``certified`` is the fraction of the protected texts that are detected no matter what an attacker does, by number of
    edits; of many texts, `ClassScores.certified` say how many are drawn at random to measure it.
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
    same: int  # this many edited characters are withstood by at least as many texts as `SHOWN_RADIUS` edits; 0 for none
    padded: float | None  # the fraction that is detected no matter what text stands before and after; None if none is
    uncertified: float | None  # the fraction that the same words catch without a certificate, at the same rate
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
            return f"{text}an unknown fraction of {self.label!s}: the data contains no text of this class"
        text += f"{100 * self.detected / self.positives:.1f}% of {self.label!s}"
        if not self.certified:
            return text
        if self.uncertified is not None:
            text += f" ({100 * self.uncertified:.1f}% without a certificate)"
        share, noun = 100 * self.certified[str(SHOWN_RADIUS)], "character" if self.same == 1 else "characters"
        same = f" (or {self.same} {noun})" if self.same and self.tokens != "characters" else ""
        changed = f"{same} are edited" if len(self.ops) == 3 else f" an attacker {Threat(self.ops).verbs}"
        text += f", {share:.1f}% no matter which {SHOWN_RADIUS} {self.tokens}{changed}"
        if self.padded is None:
            return text
        return f"{text}, {100 * self.padded:.1f}% no matter what is added before and after"


def protect(
    model: TextEstimator,
    texts: Sequence[Any],
    labels: Sequence[Any],
    *,
    label: Any,
    max_false_positives: float,
    certify: int | None = None,
    held_out: bool = False,
    positives: Callable[[], Sequence[Certificate]] | None = None,
    uncertified: float | None = None,
) -> Protection:
    """Choose the decision threshold of a model on held-out texts, and set it.

    All of them count, even those that equal a training text, because new texts repeat as well.

    Args:
        model: a fitted model of two classes; its ``threshold`` and ``records`` are set.
        texts: rows that neither trained nor calibrated the model, drawn like the texts that it will classify.
        labels: their labels.
        label: the class whose answers are protected from being changed.
        max_false_positives: the largest fraction of texts of the other class that may be flagged.
        certify: how many texts of the class are certified to report radii, 0 for none; by default those of
            `ClassScores.certified`.
        held_out: whether these rows are known to be others, even if all of their texts are.
        positives: makes certificates of texts of the class that the model does not know, once its threshold is set;
            None to certify those of ``texts``.
        uncertified: the fraction of them that is caught without a certificate, where it is known.
    """
    if not held_out and holds_used_rows(model, texts):
        raise ValueError("texts must not be those that the model was trained or calibrated on")
    classes = list(model.base_classifier().classes_ or [])
    number = class_number(classes, label)
    own = np.array([value == classes[number] for value in labels], dtype=np.bool_)
    if len(own) != len(texts):
        raise ValueError(f"labels must hold one label for each of the {len(texts)} texts, got {len(own)}")
    if strange := [value for value in labels if value not in classes]:
        raise ValueError(f"labels must be classes of the model, got {strange[0]!r}")
    class_texts, negatives = ([texts[n] for n in np.flatnonzero(mask).tolist()] for mask in (own, ~own))
    allowed = allowed_false_positives(len(negatives), max_false_positives)
    scores = model.class_scores(number)
    limit, false_positives = lowest_threshold(scores, list(model.split(negatives)), allowed)
    # The threshold is an order statistic of the scores: the rate above it follows a beta distribution, whatever the
    # number of texts above it, and a bound for that number would fail more often. The lowest threshold is fixed.
    judged = false_positives if limit == scores.grid[0] else allowed
    is_asked = class_texts and positives is None
    detected = int(scores.exceed(list(model.split(class_texts)), limit).sum()) if is_asked else 0
    scores.set_threshold(limit)
    most = scores.certified if certify is None else check_int("certify", certify)
    if positives is None:
        drawn = class_texts if most is None else DrawnRows(most).of(class_texts) if most else []
        certificates, count = model.certify(drawn) if drawn else [], len(class_texts)
    else:
        certificates = list(positives())
        detected, count = sum(each.answer == number for each in certificates), len(certificates)
    chosen = Protection(
        label=classes[number],
        max_false_positives=max_false_positives,
        threshold=float(model.threshold or 0.0),
        limit=limit,
        negatives=len(negatives),
        false_positives=false_positives,
        upper=float(beta.ppf(CONFIDENCE, judged + 1, len(negatives) - judged)),
        positives=count,
        detected=detected,
        **_withstood(certificates, number),
        uncertified=uncertified,
        tokens=TOKENS.get(str((check_unit(model.unit).description() or {}).get("kind")), "tokens"),
        ops=list(model.plan.ops),
        plan=model.predictions(),
    )
    model.record(protection=chosen.to_dict(), texts={**model.records.texts, "threshold": text_hashes(texts)})
    return chosen


def _withstood(certificates: Sequence[Certificate], number: int) -> dict[str, Any]:
    """Which parts of the texts of the protected class stay detected, by edits of tokens and of characters."""
    detected = np.array([each.answer == number for each in certificates], dtype=np.bool_)
    radii = np.array([each.radius for each in certificates], dtype=np.int64)[detected]
    padded = [each.answer == number and each.padding for each in certificates]
    # The radius in characters of a segment takes as long as all the rest, and says little.
    known = [] if any(padded) else [each.character_radius for each in certificates]
    known = [radius for radius in known if radius is not None]
    characters = np.array(known, dtype=np.int64)[detected if known else []]
    count = (radii >= SHOWN_RADIUS).sum()
    enough = [radius for radius in range(MOST_CHARACTERS) if (characters > radius).sum() >= count]
    return {
        "certified": shares(radii, len(certificates)),
        "characters": shares(characters, len(known)),
        "same": len(enough) if count else 0,
        "padded": float(np.mean(padded)) if any(padded) else None,
    }


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


def seen_texts(model: TextEstimator, texts: Sequence[Any]) -> BoolArray:
    """Which texts influenced a model: it was trained or calibrated on them, or they decided which weights were kept."""
    return known_texts(texts, *_used(model))


def _used(model: TextEstimator) -> list[TextHashes]:
    return [hashes for use, hashes in model.records.texts.items() if use not in (*FREE, "threshold")]


def holds_used_rows(model: TextEstimator, texts: Sequence[Any]) -> bool:
    """Whether texts seem to be the rows that trained or calibrated a model: all of these are there, or no others."""
    own = text_hashes(texts)
    return bool(seen_texts(model, texts).all()) or any(len(used) and np.isin(used, own).all() for used in _used(model))


def proof_rows(model: TextEstimator, examples: Examples) -> BoolArray:
    """Which rows of a file `adaptdel train --protect` held out, shape (rows,); none if one of those rows is missing."""
    kept = model.records.texts.get(PROOF, np.zeros(0, dtype=np.uint64))
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


def lowest_threshold(scores: ClassScores, negatives: Sequence[Any], allowed: int) -> tuple[float, int]:
    """The lowest threshold that at most ``allowed`` texts exceed, and how many do; bisected to the scores' grid.

    A text that exceeds a threshold exceeds all lower ones, so that each step asks about the undecided texts only.
    Scores that are known as integers are sorted: the lowest threshold is one of them.
    """
    if (values := scores.values(negatives)) is not None:
        limit = sorted(values, reverse=True)[allowed]
        return limit, sum(value > limit for value in values)
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
    axes.legend(frameon=False, title="no matter which of these are edited:")
    plots.save(figure, path)
