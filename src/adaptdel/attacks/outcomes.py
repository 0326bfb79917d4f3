"""The outcomes of an attack on many inputs: robust accuracy with intervals, costs, and the gap to the certificates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from typing import Any

from adaptdel.attacks.adaptive import FAILURE, SKIPPED, SUCCESS, TIMEOUT
from adaptdel.core.checks import check_int
from adaptdel.tables import Column, Table, number, percent

AttackRecord = dict[str, Any]
ERROR = "error"  # an input that ended its workers: it is not measured
NORMAL_95 = 1.959963984540054  # the normal quantile of a two-sided 95% interval


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95% interval for a share.

    >>> low, high = wilson_interval(150, 200)
    >>> round(low, 4), round(high, 4)
    (0.6857, 0.8049)
    """
    successes, trials = check_int("successes", successes), check_int("trials", trials)
    if not trials:
        return 0.0, 1.0
    share, z = successes / trials, NORMAL_95
    centre = share + z * z / (2 * trials)
    half = z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def is_verified(record: AttackRecord) -> bool:
    """Whether fresh votes proved that the smoothed answer changed."""
    return record["outcome"] == SUCCESS and bool(record["verified"])


def measure_attack(records: Sequence[AttackRecord]) -> dict[str, Any]:
    """The measures of an attack, in plain values.

    Accuracies before and after count all inputs; robust accuracy is over the inputs that were not skipped: the share of
    failures and timeouts. The certified radius and the attacked distance are compared for verified successes whose
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
    unverified = len(attacked) - len(verified)
    return {
        "inputs": len(records),
        **{outcome: counts[outcome] for outcome in (SUCCESS, FAILURE, SKIPPED, TIMEOUT)},
        "errors": errors,
        "accuracy_before": len(attacked) / len(records) if records else None,
        "accuracy_before_interval": list(wilson_interval(len(attacked), len(records))),
        "accuracy_after": survived / len(records) if records else None,
        "accuracy_after_interval": list(wilson_interval(survived, len(records))),
        "robust_accuracy": survived / len(attacked) if attacked else None,
        "robust_accuracy_interval": list(wilson_interval(survived, len(attacked))),
        "verified": len(verified),
        "verified_robust_accuracy": unverified / len(attacked) if attacked else None,
        "verified_robust_accuracy_interval": list(wilson_interval(unverified, len(attacked))),
        "mean_queries": _mean(record["queries"] for record in attacked),
        "mean_votes": _mean(record["votes"] for record in attacked),
        "mean_seconds": _mean(record["seconds"] for record in attacked),
        "mean_words_changed": _mean(record["words_changed"] for record in successes),
        "mean_distance": _mean(record["distance"] for record in successes),
        "mean_radius": _mean(max(record["radius"], 0) for record in attacked),
        "mean_radius_of_verified": _mean(max(record["radius"], 0) for record in covered),
        "mean_distance_of_verified": _mean(record["distance"] for record in covered),
        "median_gap": _median([record["distance"] - max(record["radius"], 0) for record in covered]),
        "violations": sum(record["distance"] <= record["radius"] for record in covered),
    }


def _median(values: list[int]) -> float | None:
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return float(ordered[middle]) if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def robustness_curves(records: Sequence[AttackRecord]) -> list[dict[str, Any]]:
    """For every number of edits: the share of inputs proven to resist it, and the share that the attack has not broken.

    The true share of right answers under attack lies between the two, up to the error level of the certificates.
    """
    records = [record for record in records if record["outcome"] != ERROR]
    right = [record for record in records if record["outcome"] != SKIPPED]
    distances = [record["distance"] for record in right if is_verified(record) and record["covered"]]
    largest = max([0, *distances, *(record["radius"] for record in right if record["radius"] < 10_000)])
    points = []
    for edits in range(largest + 1):
        certified = sum(record["radius"] >= edits for record in right)
        unbroken = len(right) - sum(distance <= edits for distance in distances)
        points.append(
            {
                "edits": edits,
                "certified": certified / max(len(records), 1),
                "certified_interval": list(wilson_interval(certified, len(records))),
                "attacked": unbroken / max(len(records), 1),
                "attacked_interval": list(wilson_interval(unbroken, len(records))),
            }
        )
    return points


def _with_interval(value: float, interval: Sequence[float]) -> str:
    return f"{percent(value)} [{percent(interval[0])}, {percent(interval[1])}]"


def _short(places: int) -> Callable[[float], str]:
    return lambda value: number(value, places)


ATTACK_COLUMNS = (
    Column("accuracy before", ("accuracy_before",), percent),
    Column("accuracy after", ("accuracy_after",), percent),
    Column("robust accuracy", ("robust_accuracy", "robust_accuracy_interval"), _with_interval, best="max"),
    Column(
        "robust accuracy, verified", ("verified_robust_accuracy", "verified_robust_accuracy_interval"), _with_interval
    ),
    Column("success / failure / skipped / timeout", ("success", "failure", "skipped", "timeout"),
           lambda *counts: " / ".join(map(str, counts))),
    Column("mean queries", ("mean_queries",), _short(0)),
    Column("mean words changed", ("mean_words_changed",), _short(1)),
    Column("mean edit distance", ("mean_distance",), _short(1)),
)  # fmt: skip
GAP_COLUMNS = (
    Column("verified successes", ("verified",)),
    Column("mean certified radius", ("mean_radius_of_verified",), _short(2)),
    Column("mean attacked distance", ("mean_distance_of_verified",), _short(2)),
    Column("median gap", ("median_gap",), _short(1)),
    Column("inside the radius", ("violations",)),
)
NAME_COLUMNS = (Column("model", ("model",), number=False), Column("recipe", ("recipe",), number=False))


def attack_table(rows: Sequence[AttackRecord]) -> Table:
    """Robust accuracies and costs; a row is `measure_attack` with the names of the model and the recipe."""
    caption = (
        "Attacks. Robust accuracy is the share of right answers that the attack did not change, over the inputs that "
        "were not skipped, with Wilson's 95% interval; verified: only changes that fresh votes confirm count. Words "
        "and distances are those of successes."
    )
    return Table("attacks", caption, (*NAME_COLUMNS, *ATTACK_COLUMNS), rows)


def curve_table(points: Sequence[dict[str, Any]]) -> Table:
    """Accuracies by number of edits: 0 to 5, then about every third more."""
    shown, following = [], 0
    for point in points:
        if point["edits"] >= following or point is points[-1]:
            shown.append(point)
            following = max(point["edits"] + 1, round(point["edits"] * 1.3))
    caption = (
        "Accuracy under attack by number of edits, with Wilson's 95% intervals: the true one lies between the share "
        "that is certified and the share that this attack has not broken (verified)."
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
        "radius lies between. “Inside the radius” counts texts within a certified radius, of which alpha allows a few."
    )
    return Table("gap", caption, (*NAME_COLUMNS, *GAP_COLUMNS), rows)
