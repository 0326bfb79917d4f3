"""Measures of a run: accuracy, radii, cardinalities, cost; by quartile of length; paired bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from math import nan, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import BoolArray, FloatArray, IntArray, check_alpha, check_int


@dataclass(frozen=True)
class Outcomes:
    """The inputs of a run that measures are taken of, as columns.

    Attributes:
        ids: what each input is called.
        hashes: of the tokens of each input.
        length: the number of tokens.
        rate: the share of tokens that the noise removes.
        right: whether the answer is the truth; True throughout if no input has a truth.
        abstained: whether not even the unedited input is settled.
        radius: the certified radius; 0 if wrong or abstained.
        log_cardinality: log10 of the size of the certified region; 0 if wrong or abstained.
        calls: votes taken.
        seconds: time taken; NaN where it is not known.
        labelled: whether the truth is known.
        problems: rows of the run that could not be certified, which are left out.
        unlabelled: rows without a truth beside others that have one, which are left out.
    """

    ids: npt.NDArray[np.object_]
    hashes: npt.NDArray[np.object_]
    length: IntArray
    rate: FloatArray
    right: BoolArray
    abstained: BoolArray
    radius: IntArray
    log_cardinality: FloatArray
    calls: IntArray
    seconds: FloatArray
    labelled: bool = True
    problems: int = 0
    unlabelled: int = 0

    def __len__(self) -> int:
        return len(self.length)

    @property
    def certified(self) -> BoolArray:
        """Whether the answer is right and settled: certified at radius 0 or more."""
        return self.right & ~self.abstained

    def take(self, places: Any) -> Outcomes:
        """Some of the inputs: places or a mask."""
        columns = {
            field.name: column[places]
            for field in fields(self)
            if isinstance(column := getattr(self, field.name), np.ndarray)
        }
        return Outcomes(**columns, labelled=self.labelled)


def outcomes(table: Any, seconds: Mapping[str, float] | None = None) -> Outcomes:
    """Read the columns of a run's table; ``seconds`` are times by id."""
    problem = np.array([text is not None for text in table["problem"].to_pylist()], dtype=np.bool_)
    correct = np.array(table["correct"].to_pylist(), dtype=np.object_)
    known = np.array([value is not None for value in correct], dtype=np.bool_) & ~problem
    labelled = bool(known.any()) or bool(problem.all())
    used = known if labelled else ~problem
    rows = table.take(np.flatnonzero(used))
    right = correct[used].astype(np.bool_) if labelled else np.ones(int(used.sum()), dtype=np.bool_)
    radius = _column(rows, "radius", np.int64)
    certified = right & (radius >= 0)
    ids = _column(rows, "id", np.object_)
    times = [(seconds or {}).get(name, nan) for name in ids]
    return Outcomes(
        ids=ids,
        hashes=_column(rows, "input_hash", np.object_),
        length=_column(rows, "length", np.int64),
        rate=_column(rows, "rate", np.float64),
        right=right,
        abstained=radius < 0,
        radius=np.where(certified, radius, 0),
        log_cardinality=np.where(certified & (radius >= 1), _column(rows, "log10_cardinality", np.float64), 0.0),
        calls=_column(rows, "calls", np.int64),
        seconds=np.array(times, dtype=np.float64),
        labelled=labelled,
        problems=int(problem.sum()),
        unlabelled=int((~known & ~problem).sum()) if labelled else 0,
    )


def _column(table: Any, name: str, dtype: Any) -> Any:
    return np.array(table[name].to_pylist(), dtype=dtype)


@dataclass(frozen=True)
class Measures:
    """One line of the paper's table, and what stands behind it; NaN where a measure is not defined.

    Attributes:
        inputs: how many inputs.
        clean_accuracy: the share of right answers, whether settled or not; no guarantee asked.
        mean_radius: the mean certified radius.
        mean_radius_se: its standard error.
        wasserstein: the distance between standardised radii and standardised lengths.
        median_log_cardinality: the median of log10 of the size of the certified region.
        lower_log_cardinality: its first quartile: three quarters of the inputs have at least this.
        upper_log_cardinality: its third quartile: one quarter of the inputs has at least this.
        certified: inputs answered rightly and certified at radius 1 or more.
        certified_zero: inputs answered rightly and certified at radius 0 only.
        wrong: settled inputs whose answer is wrong.
        abstained: inputs that are not settled, whatever the answer.
        abstained_right: those of them whose answer would have been right.
        median_certified_radius: the median radius of the inputs that are answered rightly and settled.
        calls: the mean number of votes an input.
        seconds: the mean time an input.
        mean_length: the mean number of tokens.
        median_length: its median.
        shortest: the smallest number of tokens.
        longest: the largest.
    """

    inputs: int
    clean_accuracy: float
    mean_radius: float
    mean_radius_se: float
    wasserstein: float
    median_log_cardinality: float
    lower_log_cardinality: float
    upper_log_cardinality: float
    certified: int
    certified_zero: int
    wrong: int
    abstained: int
    abstained_right: int
    median_certified_radius: float
    calls: float
    seconds: float
    mean_length: float
    median_length: float
    shortest: int
    longest: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None where a measure is not defined."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: None if value != value else value for name, value in values.items()}


def measure(found: Outcomes) -> Measures:
    """All measures of some inputs."""
    size = len(found)
    logs = np.quantile(found.log_cardinality, [0.25, 0.5, 0.75]) if size else np.full(3, nan)
    radii = found.radius[found.certified]
    timed = found.seconds[~np.isnan(found.seconds)]
    return Measures(
        inputs=size,
        clean_accuracy=_mean(found.right) if found.labelled else nan,
        mean_radius=_mean(found.radius),
        mean_radius_se=standard_error(found.radius),
        wasserstein=wasserstein(found.radius, found.length),
        median_log_cardinality=float(logs[1]),
        lower_log_cardinality=float(logs[0]),
        upper_log_cardinality=float(logs[2]),
        certified=int((radii >= 1).sum()),
        certified_zero=int((radii == 0).sum()),
        wrong=int((~found.right & ~found.abstained).sum()),
        abstained=int(found.abstained.sum()),
        abstained_right=int((found.abstained & found.right).sum()),
        median_certified_radius=float(np.median(radii)) if len(radii) else nan,
        calls=_mean(found.calls),
        seconds=_mean(timed),
        mean_length=_mean(found.length),
        median_length=float(np.median(found.length)) if size else nan,
        shortest=int(found.length.min(initial=2**62)) if size else 0,
        longest=int(found.length.max(initial=0)),
    )


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else nan


def standard_error(values: npt.NDArray[Any]) -> float:
    """The standard error of a mean, s/√n with s² = Σ (v − v̄)² / (n − 1); NaN for fewer than two values.

    >>> standard_error(np.array([0, 1, 2, 3]))
    0.6454972243679028
    """
    return float(values.std(ddof=1)) / sqrt(len(values)) if len(values) > 1 else nan


def standardised(values: npt.NDArray[Any]) -> FloatArray:
    """Values less their mean, divided by their standard deviation; NaN if they are all the same."""
    spread = float(values.std()) if len(values) and values.min() < values.max() else nan
    return np.asarray((values - values.mean()) / spread if len(values) else values, dtype=np.float64)


def wasserstein(radius: npt.NDArray[Any], length: npt.NDArray[Any]) -> float:
    """The Wasserstein distance W₁ = ∫ |F⁻¹ − G⁻¹| between the distributions of standardised radii and lengths.

    Both are empirical distributions of equally many values, so that the quantile functions are the sorted values. It is
    small if long inputs have as many times the usual radius as they have times the usual length. NaN if all radii or
    all lengths are the same.

    >>> wasserstein(np.array([1, 2, 3]), np.array([10, 20, 30]))
    0.0
    """
    if not len(radius):
        return nan
    gaps = np.sort(standardised(radius)) - np.sort(standardised(length))
    return float(np.abs(gaps).mean())


def certified_at_radius(found: Outcomes, radii: npt.ArrayLike) -> FloatArray:
    """Certified accuracy: the share of inputs that are answered rightly and certified at each radius or more."""
    return _share_at_least(found.radius[found.certified], radii, len(found))


def certified_at_log_cardinality(found: Outcomes, thresholds: npt.ArrayLike) -> FloatArray:
    """Certified accuracy: the share answered rightly with a log-cardinality of at least each threshold."""
    return _share_at_least(found.log_cardinality[found.certified], thresholds, len(found))


def _share_at_least(values: npt.NDArray[Any], thresholds: npt.ArrayLike, size: int) -> FloatArray:
    below = np.searchsorted(np.sort(values), np.asarray(thresholds), side="left")
    return np.asarray((len(values) - below) / size if size else np.full(np.shape(thresholds), nan), dtype=np.float64)


def radius_curve(found: Outcomes) -> tuple[IntArray, FloatArray]:
    """Certified accuracy at every radius, from 0 to the largest."""
    radii = np.unique(np.append(found.radius, 0))
    return radii, certified_at_radius(found, radii)


def log_cardinality_curve(found: Outcomes) -> tuple[FloatArray, FloatArray]:
    """Certified accuracy at 0 and at every log-cardinality where it falls."""
    thresholds = np.unique(np.append(found.log_cardinality, 0.0))
    return thresholds, certified_at_log_cardinality(found, thresholds)


def quartile_edges(found: Outcomes) -> FloatArray:
    """The quartiles Q1, Q2 and Q3 of the lengths."""
    return np.quantile(found.length, [0.25, 0.5, 0.75]) if len(found) else np.full(3, nan)


def by_quartile(found: Outcomes, edges: FloatArray | None = None) -> list[Outcomes]:
    """The inputs up to Q1, above Q1 up to Q2, above Q2 up to Q3, and above Q3; equal lengths stay together."""
    group = np.searchsorted(quartile_edges(found) if edges is None else edges, found.length, side="left")
    return [found.take(group == number) for number in range(4)]


Values = npt.NDArray[Any]
STATISTICS = (
    "clean_accuracy", "certified_accuracy_1", "mean_radius", "median_log_cardinality", "wasserstein", "calls",
)  # fmt: skip
_CELLS = 2**18  # values that are resampled at a time


@dataclass(frozen=True)
class Difference:
    """By how much a run exceeds the other in one measure, with an interval for what other inputs would have given."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0


def paired(first: Outcomes, second: Outcomes, *, same_tokens: bool = True) -> tuple[Outcomes, Outcomes]:
    """The inputs that both runs hold, in the same order: by id, and with the same tokens if these can be compared."""
    places = {name: place for place, name in enumerate(second.ids)}
    pairs = [(place, places[name]) for place, name in enumerate(first.ids) if name in places]
    if same_tokens:
        pairs = [(a, b) for a, b in pairs if first.hashes[a] == second.hashes[b]]
    left, right = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    return first.take(left), second.take(right)


def paired_differences(
    run: Outcomes, baseline: Outcomes, *, resamples: int = 2000, level: float = 0.95, seed: int = 0
) -> dict[str, Difference]:
    """Each measure of ``run`` less that of ``baseline``, with percentile intervals of the paired bootstrap.

    Inputs are drawn with replacement, the same for both runs; both hold the same inputs in the same order (`paired`).
    The interval speaks of other inputs from where these came from, not of other draws of the noise.

    """
    size = len(run)
    if len(baseline) != size:
        raise ValueError(f"baseline must hold the same {size} inputs, got {len(baseline)}")
    check_int("resamples", resamples, least=1)
    check_alpha(1 - level)
    if not size:
        return {name: Difference(nan, nan, nan) for name in STATISTICS}
    whole = np.ones((1, size), dtype=np.int64)
    value = {name: one[0] for name, one in _differences(run, baseline, whole).items()}
    drawn = [_differences(run, baseline, counts) for counts in _resampled(size, resamples, seed)]
    tail = 50 * (1 - level)
    made = {}
    for name in STATISTICS:
        column = np.concatenate([block[name] for block in drawn])
        column = column[~np.isnan(column)]
        low, high = np.percentile(column, [tail, 100 - tail]) if len(column) > resamples / 2 else (nan, nan)
        made[name] = Difference(float(value[name]), float(low), float(high))
    return made


def _resampled(size: int, resamples: int, seed: int) -> Iterator[IntArray]:
    """How often each input is drawn, in blocks of rows."""
    rng = np.random.default_rng(seed)
    rows = max(1, _CELLS // size)
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        drawn = rng.integers(size, size=(count, size)) + size * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * size).reshape(count, size)


def _differences(run: Outcomes, baseline: Outcomes, counts: IntArray) -> dict[str, FloatArray]:
    left, right = _statistics(run, counts), _statistics(baseline, counts)
    return {name: left[name] - right[name] for name in STATISTICS}


def _statistics(found: Outcomes, counts: IntArray) -> dict[str, FloatArray]:
    """The measures of every resample: a row of counts each."""
    size = len(found)
    means = [found.right, found.certified & (found.radius >= 1), found.radius, found.calls]
    right, certified, radius, calls = (counts @ np.stack([one.astype(np.float64) for one in means]).T).T / size
    radii, lengths = _sorted_resamples(found.radius, counts), _sorted_resamples(found.length, counts)
    logs = _sorted_resamples(found.log_cardinality, counts)
    return {
        "clean_accuracy": right if found.labelled else np.full(len(counts), nan),
        "certified_accuracy_1": certified,
        "mean_radius": radius,
        "median_log_cardinality": (logs[:, (size - 1) // 2] + logs[:, size // 2]) / 2,
        "wasserstein": np.abs(_standardised_rows(radii) - _standardised_rows(lengths)).mean(axis=1),
        "calls": calls,
    }


def _sorted_resamples(values: Values, counts: IntArray) -> FloatArray:
    """The values of every resample in increasing order, without sorting each."""
    order = np.argsort(values, kind="stable")
    repeated = np.repeat(np.tile(values[order].astype(np.float64), len(counts)), counts[:, order].ravel())
    return repeated.reshape(counts.shape)


def _standardised_rows(rows: FloatArray) -> FloatArray:
    """Sorted rows, each less its mean and divided by its standard deviation; NaN where a row is constant."""
    spread = np.where(rows[:, :1] < rows[:, -1:], rows.std(axis=1, keepdims=True), nan)
    return np.asarray((rows - rows.mean(axis=1, keepdims=True)) / spread)
