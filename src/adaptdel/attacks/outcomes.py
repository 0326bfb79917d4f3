"""The outcomes of an attack on many inputs: robust accuracy with intervals, costs, and the gap to the certificates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import fmean, median
from typing import Any

import numpy as np
from scipy import stats

from adaptdel.measures.summary import wilson
from adaptdel.tables import Column, Table, number, percent

SUCCESS, FAILURE, SKIPPED, TIMEOUT = OUTCOMES = ("success", "failure", "skipped", "timeout")
ERROR = "error"  # an input that ended its workers: it is not measured
AttackRecord = dict[str, Any]


def attempt(outcome: str, **values: Any) -> AttackRecord:
    """What an attack on an input gives: queries, votes and, for a success, text, words_changed and verified."""
    return {"outcome": outcome, "votes": 0, "text": None, "words_changed": None, "verified": None} | values


def is_verified(record: AttackRecord) -> bool:
    """Whether fresh votes proved that the smoothed answer changed."""
    return record["outcome"] == SUCCESS and bool(record["verified"])


def measure_attack(records: Sequence[AttackRecord]) -> dict[str, Any]:
    """The measures of an attack, in plain values.

    Accuracies before and after count all inputs; robust accuracy is over the inputs that were not skipped: the fraction
    of failures and timeouts. The certified radius and the attacked distance are compared for verified successes whose
    edits the certificate covers. Inputs that ended their workers are counted as errors and in nothing else.
    """
    errors = sum(record["outcome"] == ERROR for record in records)
    records = [record for record in records if record["outcome"] != ERROR]
    counts = Counter(record["outcome"] for record in records)
    attacked = [record for record in records if record["outcome"] != SKIPPED]
    successes = [record for record in attacked if record["outcome"] == SUCCESS]
    verified = [record for record in successes if is_verified(record)]
    covered = [record for record in verified if record["covered"]]
    survived = counts[FAILURE] + counts[TIMEOUT]
    # the edits that certificate and attack leave open: none if the attack needed one more than the certified radius
    gaps = [record["distance"] - 1 - max(record["radius"], 0) if record["distance"] else 0 for record in covered]
    return {
        "inputs": len(records),
        **{outcome: counts[outcome] for outcome in OUTCOMES},
        "errors": errors,
        **_fraction("accuracy_before", len(attacked), len(records)),
        **_fraction("accuracy_after", survived, len(records)),
        **_fraction("robust_accuracy", survived, len(attacked)),
        "robust_accuracy_bootstrap": bootstrap_interval(survived, len(attacked)),
        "verified": len(verified),
        **_fraction("verified_robust_accuracy", len(attacked) - len(verified), len(attacked)),
        "mean_queries": _mean(record["queries"] for record in attacked),
        "mean_words_changed": _mean(record["words_changed"] for record in successes),
        "mean_distance": _mean(record["distance"] for record in successes),
        "mean_radius_of_verified": _mean(max(record["radius"], 0) for record in covered),
        "mean_distance_of_verified": _mean(record["distance"] for record in covered),
        "median_gap": float(median(gaps)) if gaps else None,
        "tight": sum(each == 0 for each in gaps),
        "violations": sum(record["distance"] <= record["radius"] for record in covered),
    }


def _fraction(name: str, count: int, size: int) -> dict[str, Any]:
    """A fraction of inputs, and Wilson's 95% interval under the same name with "_interval"."""
    if not size:
        return {name: None, f"{name}_interval": [0.0, 1.0]}
    low, high = wilson(np.array(count / size), size)
    return {name: count / size, f"{name}_interval": [float(low), float(high)]}


def bootstrap_interval(count: int, size: int) -> list[float]:
    """The 95% percentile interval of the bootstrap for a fraction, in the limit of infinitely many resamples.

    A resampled count has a binomial distribution, so that nothing needs to be drawn.

    >>> bootstrap_interval(150, 200)
    [0.69, 0.81]
    """
    if not size:
        return [0.0, 1.0]
    return [float(stats.binom.ppf(level, size, count / size)) / size for level in (0.025, 0.975)]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def robustness_curves(records: Sequence[AttackRecord]) -> list[dict[str, Any]]:
    """For every number of edits: the fraction of inputs proven to resist it, and that which the attack has not broken.

    The true fraction of right answers under attack lies between the two, up to the error level of the certificates.
    """
    records = [record for record in records if record["outcome"] != ERROR]
    right = [record for record in records if record["outcome"] != SKIPPED]
    distances = [record["distance"] for record in right if is_verified(record) and record["covered"]]
    largest = max([0, *distances, *(record["radius"] for record in right if record["radius"] < 10_000)])
    return [
        {
            "edits": edits,
            **_fraction("certified", sum(record["radius"] >= edits for record in right), len(records)),
            **_fraction("attacked", len(right) - sum(distance <= edits for distance in distances), len(records)),
        }
        for edits in range(largest + 1)
    ]


def _interval(interval: Sequence[float]) -> str:
    return f"[{percent(interval[0])}, {percent(interval[1])}]"


def _with_interval(value: float, interval: Sequence[float]) -> str:
    return f"{percent(value)} {_interval(interval)}"


_SHORT = [partial(number, digits=digits) for digits in range(3)]
_NAMES = (Column("model", ("model",), number=False), Column("recipe", ("recipe",), number=False))


def attack_table(rows: Sequence[AttackRecord]) -> Table:
    """Robust accuracies and costs; a row is `measure_attack` with the names of the model and the recipe."""
    caption = (
        "Attacks. Robust accuracy is the fraction of right answers that the attack did not change, over the inputs "
        "that were not skipped, with Wilson's 95% interval, and with that of the bootstrap as in the paper; verified: "
        "only changes that fresh votes confirm count. Words and distances are those of successes."
    )
    verified = ("verified_robust_accuracy", "verified_robust_accuracy_interval")
    columns = (
        *_NAMES,
        Column("accuracy before", ("accuracy_before",), percent),
        Column("accuracy after", ("accuracy_after",), percent),
        Column("robust accuracy", ("robust_accuracy", "robust_accuracy_interval"), _with_interval, best="max"),
        Column("bootstrap", ("robust_accuracy_bootstrap",), _interval),
        Column("robust accuracy, verified", verified, _with_interval),
        Column("success / failure / skipped / timeout", OUTCOMES, lambda *counts: " / ".join(map(str, counts))),
        Column("mean queries", ("mean_queries",), _SHORT[0]),
        Column("mean words changed", ("mean_words_changed",), _SHORT[1]),
        Column("mean edit distance", ("mean_distance",), _SHORT[1]),
    )
    return Table("attacks", caption, columns, rows)


def curve_table(points: Sequence[dict[str, Any]]) -> Table:
    """Accuracies by number of edits: 0 to 5, then about every third more."""
    shown, following = [], 0
    for point in points:
        if point["edits"] >= following or point is points[-1]:
            shown.append(point)
            following = max(point["edits"] + 1, round(point["edits"] * 1.3))
    caption = (
        "Accuracy under attack by number of edits, with Wilson's 95% intervals: the true one lies between the fraction "
        "that is certified and the fraction that this attack has not broken (verified)."
    )
    columns = (
        Column("edits", ("edits",)),
        Column("certified", ("certified", "certified_interval"), _with_interval),
        Column("not broken", ("attacked", "attacked_interval"), _with_interval),
    )
    return Table("curve", caption, columns, shown)


def gap_table(rows: Sequence[AttackRecord]) -> Table:
    """The certified lower bound beside the attacked upper bound."""
    caption = (
        "Certified radius and attacked distance, over the inputs whose answer the attack changed (verified): the true "
        "radius is at least the former and below the latter. The gap between them is distance − 1 − radius; where it "
        "is 0, the certificate is tight. “Inside the radius” counts texts within a certified radius, of which alpha "
        "allows a few."
    )
    columns = (
        *_NAMES,
        Column("verified successes", ("verified",)),
        Column("mean certified radius", ("mean_radius_of_verified",), _SHORT[2]),
        Column("mean attacked distance", ("mean_distance_of_verified",), _SHORT[2]),
        Column("median gap", ("median_gap",), _SHORT[1]),
        Column("tight", ("tight",)),
        Column("inside the radius", ("violations",)),
    )
    return Table("gap", caption, columns, rows)
