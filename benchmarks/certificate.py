"""How fast certificates are: ratios against the paper's literal algorithm in the same run, and how the cost grows.

    python benchmarks/certificate.py --out out

prints a table and writes certificate.json and certificate.png.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from adaptdel import Deletion, FixedRate, LengthRate, certified_radius, clopper_pearson
from adaptdel.core.radius import cached_table
from adaptdel.core.rates import Rate
from adaptdel.tables import text_table

UNANIMOUS = clopper_pearson(4000, 4000, 0.05)[0]


def seconds(work: Callable[[], object], least: float = 0.2) -> float:
    """The median time of one run, over runs of at least ``least`` seconds together."""
    times: list[float] = []
    while sum(times) < least or len(times) < 3:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


# The naive baseline: Algorithm 1 of the paper with its lemmas, as one would type them in with scipy.
def literal_bounds(mu1: float, mu2: float, n: int, other: int, common: int, rate: Rate) -> tuple[float, float]:
    psi, other_psi = rate(n), rate(other)
    c, other_c = psi ** (n - common), other_psi ** (other - common)
    here = stats.binom.pmf(np.arange(common + 1), common, 1 - psi)
    there = stats.binom.pmf(np.arange(common + 1), common, 1 - other_psi)

    def fill(mass: float, from_zero: bool) -> float:
        a, b = (here, there) if from_zero else (here[::-1], there[::-1])
        if mass <= 0:
            return 0.0
        total = np.cumsum(a)
        size = min(int(np.searchsorted(total, mass)), common)
        filled = total[size - 1] if size else 0.0
        return float(b[:size].sum() + b[size] * (mass - filled) / a[size])

    low = other_c / c * fill(mu1 - 1 + c, psi >= other_psi)
    high = other_c / c * fill(mu2, psi <= other_psi) + 1 - other_c
    return low, high


def literal_radius(p1: float, n: int, rate: Rate) -> int:
    r = 0
    while True:
        for n_del in range(r + 1):
            for n_ins in range(r - n_del + 1):
                n_sub = r - n_del - n_ins
                if n_del + n_sub > n:
                    continue
                low, high = literal_bounds(p1, 1 - p1, n, n + n_ins - n_del, n - n_del - n_sub, rate)
                if low <= high:
                    return r - 1
        r += 1


def cold(p1: float, n: int, rate: Rate, **options: Any) -> int:
    cached_table.cache_clear()
    return certified_radius(p1, length=n, noise=Deletion(rate), **options)


def one_radius() -> dict[str, Any]:
    rate = LengthRate(0.0, 5)
    start = time.perf_counter()
    literal = literal_radius(UNANIMOUS, 400, rate)
    naive = time.perf_counter() - start
    tight = seconds(lambda: cold(UNANIMOUS, 400, rate))
    paper = seconds(lambda: cold(UNANIMOUS, 400, rate, bound="paper"))
    return {
        "case": "AdaptDel+ with k = 5, n = 400, 4000 unanimous votes, no table in the cache",
        "literal_radius": literal,
        "paper_radius": cold(UNANIMOUS, 400, rate, bound="paper"),
        "tight_radius": cold(UNANIMOUS, 400, rate),
        "literal_seconds": naive,
        "tight_seconds": tight,
        "paper_seconds": paper,
        "ratio_tight": naive / tight,
        "ratio_paper": naive / paper,
    }


def batch() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 2001, size=100_000)
    votes = rng.integers(2000, 4001, size=100_000)
    noise = Deletion(LengthRate(0.9, 23))
    cached_table.cache_clear()

    def all_radii() -> object:
        return certified_radius(clopper_pearson(votes, 4000, 0.05)[0], length=lengths, noise=noise)

    start = time.perf_counter()
    all_radii()
    first = time.perf_counter() - start
    p1 = np.asarray(clopper_pearson(votes, 4000, 0.05)[0])
    warm = seconds(lambda: certified_radius(p1, length=lengths, noise=noise))
    with_votes = seconds(all_radii)
    return {
        "case": "100,000 certificates of lengths 10 to 2000, AdaptDel k = 23, one call",
        "cold_per_second": 100_000 / first,
        "warm_per_second": 100_000 / warm,
        "warm_per_second_from_votes": 100_000 / with_votes,
    }


def million() -> dict[str, Any]:
    """In a process of its own, so that its peak memory is its own."""
    done = subprocess.run([sys.executable, __file__, "--million"], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def print_million() -> None:
    certified_radius(0.9, length=10, noise=Deletion(FixedRate(0.9)))  # load what is loaded lazily
    start = time.perf_counter()
    radius = certified_radius(UNANIMOUS, length=10**6, noise=Deletion(FixedRate(0.999)))
    taken = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    case = "n = 1,000,000 at psi = 0.999, 4000 unanimous votes, no table in the cache"
    print(json.dumps({"case": case, "radius": radius, "milliseconds": 1000 * taken, "peak_megabytes": peak / 1024}))


def growth() -> dict[str, Any]:
    """The cost of one cold radius, against the radius at one length and against the length at one kept length."""
    by_radius = [
        (cold(UNANIMOUS, 2000, rate), seconds(partial(cold, UNANIMOUS, 2000, rate)))
        for rate in (LengthRate(0.0, k) for k in (400, 200, 100, 50, 23, 11, 5, 2.5, 1.5))
    ]
    lengths = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
    named: dict[str, Rate] = {"fixed rate 0.9": FixedRate(0.9), "adaptive, k = 23": LengthRate(0.9, 23)}
    by_length = {
        name: [(n, seconds(partial(cold, UNANIMOUS, n, rate))) for n in lengths] for name, rate in named.items()
    }
    return {"by_radius_at_n_2000": by_radius, "by_length": by_length}


def draw(data: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    radii, times = zip(*data["by_radius_at_n_2000"], strict=True)
    left.loglog(radii, [1000 * t for t in times], "o-", color="#1d6f65")
    left.set_xlabel("radius, at n = 2000")
    left.set_ylabel("milliseconds for one radius")
    for (name, points), colour in zip(data["by_length"].items(), ("#c8553d", "#1d6f65"), strict=True):
        lengths, times = zip(*points, strict=True)
        right.loglog(lengths, [1000 * t for t in times], "o-", color=colour, label=name)
    right.set_xlabel("length n (at k = 23 the radius grows with it, to 30,071)")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("What one radius costs, from nothing")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for certificate.json and .png")
    parser.add_argument("--million", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.million:
        print_million()
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = {"one_radius": one_radius(), "batch": batch(), "million": million(), "growth": growth()}
    (arguments.out / "certificate.json").write_text(json.dumps(result, indent=2) + "\n")
    draw(result["growth"], arguments.out / "certificate.png")
    single, many, large = result["one_radius"], result["batch"], result["million"]
    rows = [
        ("one radius of 54 against the literal Algorithm 1", f"{single['ratio_tight']:,.0f} times faster", ">= 1000"),
        ("  the same with the paper's bound", f"{single['ratio_paper']:,.0f} times faster", ""),
        ("certificates a second, one call, warm", f"{many['warm_per_second']:,.0f}", ">= 50,000"),
        ("  from votes, Clopper-Pearson included", f"{many['warm_per_second_from_votes']:,.0f}", ""),
        ("  the first call, which makes the tables", f"{many['cold_per_second']:,.0f}", ""),
        ("n = 1,000,000 at rate 0.999: milliseconds", f"{large['milliseconds']:.1f}", "< 100"),
        ("  peak memory of the process: MB", f"{large['peak_megabytes']:.0f}", "< 200"),
    ]
    print(text_table(("measurement", "value", "goal"), rows).to_terminal())
    print(f"wrote {arguments.out / 'certificate.json'} and {arguments.out / 'certificate.png'}")


if __name__ == "__main__":
    main()
