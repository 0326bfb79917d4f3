"""Our L-BFGS against SciPy's, on the loss of the linear model on real data.

    python -m benchmarks.optimiser --data ../shared/data --out out [--quick]

Both minimise the same objective from the same start with the same memory, limit of iterations and stopping rule, in
turns within one run. Besides time and loss it is measured whether the weights depend on the number of BLAS threads:
SciPy's L-BFGS-B calls BLAS, whose sums depend on it, and `LinearClassifier` promises the same model for any number.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from adaptdel import Deletion, LengthRate
from adaptdel.classifiers import linear_training
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.classifiers.linear_training import MEMORY, Minimum, Objective
from adaptdel.core.checks import FloatArray
from adaptdel.text.units import Words
from benchmarks.real import load

THREADS = (1, 2)  # of BLAS
DATA = ("spamassassin.train", "imdb.train", "yelp.train")


def scipy_minimise(objective: Objective, start: FloatArray, iterations: int, tolerance: float) -> Minimum:
    """SciPy's L-BFGS-B without bounds; its ``ftol`` is the stopping rule of `linear_training.minimise`."""
    values: list[float] = []
    options: Any = {"maxiter": iterations, "maxfun": 10**6, "ftol": tolerance, "gtol": 0.0, "maxcor": MEMORY}
    result = minimize(
        objective,
        start,
        jac=True,
        method="L-BFGS-B",
        options=options,
        callback=lambda intermediate_result: values.append(float(intermediate_result.fun)),
    )
    return Minimum(result.x, float(result.fun), result.nit, values)


class Comparison:
    """Takes the place of `linear_training.minimise`: runs both optimisers on the objective that it is given."""

    def __init__(self, repeats: int) -> None:
        self.repeats = repeats
        self.ours = linear_training.minimise
        self.measurements: dict[str, Any] = {}

    def __call__(
        self, objective: Objective, start: FloatArray, *, iterations: int, tolerance: float, step: Any, stop: Any = None
    ) -> Any:
        """Measure both; returns our minimum, with which training continues."""
        calls = 0

        def counted(point: FloatArray) -> tuple[float, FloatArray]:
            nonlocal calls
            calls += 1
            return objective(point)

        def run(name: str) -> Minimum:
            if name == "scipy":
                return scipy_minimise(counted, start, iterations, tolerance)
            return self.ours(counted, start, iterations=iterations, tolerance=tolerance, step=lambda steps: None)

        arms = [(name, threads) for threads in THREADS for name in ("ours", "scipy")]
        seconds: dict[tuple[str, int], list[float]] = {arm: [] for arm in arms}
        minima: dict[tuple[str, int], Minimum] = {}
        evaluations: dict[tuple[str, int], int] = {}
        for _ in range(self.repeats):
            for name, threads in arms:
                with threadpool_limits(threads):
                    calls, began = 0, time.perf_counter()
                    minima[name, threads] = run(name)
                    seconds[name, threads].append(time.perf_counter() - began)
                    evaluations[name, threads] = calls
        medians = {arm: float(np.median(values)) for arm, values in seconds.items()}
        self.measurements = {
            "weights": len(start),
            "scipy_time_over_ours": {
                threads: medians["scipy", threads] / medians["ours", threads] for threads in THREADS
            },
            "scipy_loss_over_ours": minima["scipy", 1].value / minima["ours", 1].value,
        } | {
            name: {
                "seconds_by_threads": {threads: medians[name, threads] for threads in THREADS},
                "loss": minima[name, 1].value,
                "steps": minima[name, 1].steps,
                "evaluations": evaluations[name, 1],
                "same_weights_for_any_threads": np.array_equal(minima[name, 1].point, minima[name, 2].point),
            }
            for name in ("ours", "scipy")
        }
        return minima["ours", 1]


def measure(data: Path, name: str, count: int, repeats: int) -> dict[str, Any]:
    """Train the linear model on a data set with both optimisers."""
    texts, labels = load(data, name, count)
    comparison = Comparison(repeats)
    linear_training.minimise = comparison
    try:
        tokens = [Words().split(text) for text in texts]
        noise = Deletion(LengthRate.from_lengths(map(len, tokens), 0.9))
        LinearClassifier().fit(tokens, labels, noise=noise)
    finally:
        linear_training.minimise = comparison.ours
    return {"examples": len(texts), **comparison.measurements}


def main() -> None:
    """Measure all data sets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with spamassassin.train.jsonl.gz and others")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--quick", action="store_true", help="fewer examples and repeats")
    arguments = parser.parse_args()
    count, repeats = (500, 2) if arguments.quick else (25_000, 3)
    result = {name: measure(arguments.data, name, count, repeats) for name in DATA}
    print(json.dumps(result, indent=2))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "optimiser.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
