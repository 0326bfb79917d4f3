"""Tables of other systems for `adaptdel report`: LipsLev's published file, and CERT-ED's closed form.

    python -m experiments.other_systems lipslev _results_lipslev.csv --out lipslev.csv
    python -m experiments.other_systems cert-ed RUN --out cert-ed.csv

LipsLev's file is results/example_ag_news/_results_lipslev.csv of its repository. CERT-ED's radius is that of its
authors' code, ⌊log((2 + p₂ − p₁) / 2) / log ψ⌋, from the bounds of a run with a fixed rate.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from math import floor, log
from pathlib import Path

import adaptdel as ad

Row = tuple[object, ...]


def lipslev(file: Path) -> Iterator[Row]:
    """The rows of the published file: a wrong prediction has no radius."""
    yield "text", "label", "answer", "radius", "unit"
    with file.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            yield row["sentence"], row["true_label"], row["pred_label"], row["radius"], "char"


def cert_ed(folder: Path) -> Iterator[Row]:
    """The radii of the closed form from the same votes."""
    yield "id", "label", "answer", "radius"
    for row in ad.read_run(folder).records():
        p1, p2 = row["p1"], row["p2"]
        radius = "" if row["abstained"] or p2 >= p1 else floor(log((2 + p2 - p1) / 2) / log(row["rate"]))
        yield row["id"], row["truth"], row["answer"], radius


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {"lipslev": lipslev, "cert-ed": cert_ed}
    parser.add_argument("system", choices=tables)
    parser.add_argument("source", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with options.out.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(tables[options.system](options.source))


if __name__ == "__main__":
    main()
