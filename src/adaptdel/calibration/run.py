"""AdaptDel+ calibration: arguments checked, bins made, examples dealt, and then searched."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from adaptdel.calibration.bins import TRIMMED, Bin, check_edges, equal_width_edges, make_bins
from adaptdel.calibration.examples import read_examples
from adaptdel.calibration.objective import OBJECTIVES
from adaptdel.calibration.result import Calibration
from adaptdel.calibration.task import Task
from adaptdel.calibration.votes import Voting
from adaptdel.checks import check_choice, check_int, check_probability, check_real
from adaptdel.smoothed import SmoothedClassifier


def calibrate(
    model: SmoothedClassifier,
    texts: Sequence[Any],
    labels: Sequence[Any],
    *,
    threshold: float = 0.75,
    objective: str = "certified",
    min_accuracy: float | None = None,
    bins: str | Sequence[float] = "auto",
    interpolate: bool = False,
    monotone: bool = False,
    per_bin: int = 200,
    min_count: int = 50,
    n_select: int = 32,
    n_estimate: int = 256,
    tol: float = 0.5,
    seed: int = 0,
    journal: Path | None = None,
    progress: Any = "auto",
) -> Calibration:
    """Find how many tokens to keep of inputs of every length: AdaptDel+.

    The base classifier is left as it is, and so is the model: give it ``calibration.noise``. Examples that the base
    classifier was trained on make it look surer than it is, so that too little is kept: calibrate on others if you can.

    Args:
        model: a model under deletion; its attacker, bound and alpha are those of the calibration.
        texts: the inputs to calibrate on.
        labels: their labels.
        threshold: the share of a bin's examples that has to be certified at the radius that is maximised.
        objective: "certified", the paper's: the largest radius with a certified accuracy of ``threshold``; or "mean":
            the largest mean radius with a clean accuracy of ``min_accuracy``.
        min_accuracy: the least clean accuracy, for "mean": the share of right answers, whether settled or not.
        bins: "auto", or where bins of lengths begin, such as [0, 137, 230, 324].
        interpolate: whether the kept length is interpolated between the centres of bins, so that the rate has no jumps.
        monotone: whether kept lengths are fitted so that they do not fall from one bin to the next.
        per_bin: on how many examples of a bin it is calibrated at most.
        min_count: how many examples an automatic bin has to hold at least.
        n_select: votes that choose an answer.
        n_estimate: votes that bound its probability.
        tol: how closely a kept length is searched for.
        seed: of the noise and of the choice of examples.
        journal: a file in which a run that is stopped leaves what it has done; the same call goes on from there.
        progress: True, False, "auto" (if a terminal watches) or a callable (done, total).
    """
    task = prepare(
        model,
        texts,
        labels,
        threshold=threshold,
        objective=objective,
        min_accuracy=min_accuracy,
        bins=bins,
        interpolate=interpolate,
        monotone=monotone,
        per_bin=per_bin,
        min_count=min_count,
        n_select=n_select,
        n_estimate=n_estimate,
        tol=tol,
        seed=seed,
    )
    return task.run(journal=journal, progress=progress)


def prepare(
    model: SmoothedClassifier,
    texts: Sequence[Any],
    labels: Sequence[Any],
    *,
    threshold: float,
    objective: str,
    min_accuracy: float | None,
    bins: str | Sequence[float],
    interpolate: bool,
    monotone: bool,
    per_bin: int,
    min_count: int,
    n_select: int,
    n_estimate: int,
    tol: float,
    seed: int,
) -> Task:
    """Check the arguments of `calibrate`, make the bins and deal the examples."""
    settings: dict[str, Any] = {
        "threshold": check_real("threshold", threshold, accepted="in (0, 1]", least=np.nextafter(0, 1), most=1.0),
        "objective": check_choice("objective", objective, OBJECTIVES),
        "min_accuracy": _least_accuracy(min_accuracy, objective),
        "interpolate": _flag("interpolate", interpolate),
        "monotone": _flag("monotone", monotone),
        "per_bin": check_int("per_bin", per_bin, least=1),
        "min_count": check_int("min_count", min_count, least=1),
        "n_select": check_int("n_select", n_select, least=1),
        "n_estimate": check_int("n_estimate", n_estimate, least=1),
        "tol": check_real("tol", tol, accepted="a finite number of at least 0.001", least=0.001, most=1e9),
        "seed": check_int("seed", seed, most=2**63 - 1),
    }
    voting = Voting.of(model, n_select=settings["n_select"], n_estimate=settings["n_estimate"], seed=settings["seed"])
    examples = read_examples(texts, labels, voting.unit, voting.base.classes_)
    made = _bins(bins, examples.lengths, min_count)
    return Task(
        voting,
        made,
        [examples.drawn(bin, number, most=per_bin, seed=seed) for number, bin in enumerate(made)],
        [sum(length in bin for length in examples.lengths) for bin in made],
        {
            **settings,
            **voting.described(),
            "bins": [bin.lower for bin in made],
            "data": examples.digest(),
            "examples": len(examples.labels),
        },
    )


def _bins(bins: str | Sequence[float], lengths: list[int], min_count: int) -> list[Bin]:
    if isinstance(bins, str):
        check_choice("bins", bins, ("auto",))
        edges = equal_width_edges(lengths, min_count=min_count)
    else:
        edges = check_edges(bins, lengths)
    return make_bins(edges, float(np.percentile(lengths, 100 - TRIMMED)))


def _least_accuracy(value: float | None, objective: str) -> float | None:
    if objective != "mean":
        if value is not None:
            raise ValueError(f"min_accuracy must be None unless the objective is 'mean', got {value!r}")
        return None
    if value is None:
        raise ValueError("min_accuracy must be given with the objective 'mean', got None")
    return check_probability("min_accuracy", value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return value


DEFAULTS: dict[str, Any] = {
    name: parameter.default
    for name, parameter in signature(calibrate).parameters.items()
    if parameter.default is not parameter.empty and name not in ("journal", "progress")
}
