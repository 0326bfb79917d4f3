"""`adaptdel.paper` is what the paper prints, field by field."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

import adaptdel as ad
from adaptdel.core.confidence import Looks, vote_bounds
from adaptdel.paper import PAPER_CALIBRATION, paper_calibration, paper_certification, paper_training
from adaptdel.settings import CERTIFICATION, METHODS, CalibrationSettings, TrainingSettings
from adaptdel.training.training import method_noises
from tests.run_files import run


def test_the_settings_of_the_paper_are_those_it_prints() -> None:
    """Against the paper's table of parameters, field by field; nothing follows from the size of the data."""
    chosen = TrainingSettings.from_dict(paper_training("adaptdel")).resolved([134] * 585_000)
    printed = {"learning_rate": 2e-5, "weight_decay": 1e-6, "clip": 1.0, "batch_size": 32, "epochs": 200, "warmup": 10}
    assert {name: getattr(chosen.transformer, name) for name in printed} == printed
    assert (chosen.model, chosen.transformer.patience, chosen.rate, chosen.validation) == ("roberta-base", 25, 0.9, 0.1)
    assert TrainingSettings.from_dict(paper_training("adaptdel+")).rates == (0.7, 0.99)
    for method in METHODS:
        TrainingSettings.from_dict(paper_training(method))
    given = TrainingSettings.from_dict({"k": 23}).resolved([400])
    assert method_noises(given, [400]).smoothing == ad.Deletion(ad.LengthRate(0.9, 23))


@pytest.mark.parametrize("options", [["--method", "exact"], ["--method", "own"], ["--model", "linear"]], ids=" ".join)
def test_what_the_paper_does_not_train_is_refused(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", "--settings", "paper", *options, "--data", "train.csv", "--out", tmp_path / "model") == 2
    error = capsys.readouterr().err
    assert "--settings paper trains a transformer, with nosmooth" in error
    assert error.count("\n") == 1


# The paper's table of AdaptDel+'s parameters (Appendix D): inner bin edges, threshold, examples per bin.
PRINTED = {
    "yelp": ("28 82 135 189 243 296 350 404 457 511 565 619 672 726 780 887", 0.40, 200),
    "imdb": ("72 133 194 256 318 379 440 502 564 625 686 748 810 871 932", 0.75, 200),
    "spamassassin": ("137 230 324", 0.75, 50),
    "lun": ("85 150 216 282 347", 0.75, 200),
}


def test_the_calibration_of_the_paper_is_what_it_prints() -> None:
    assert set(PRINTED) == set(PAPER_CALIBRATION)
    for name, (edges, threshold, per_bin) in PRINTED.items():
        chosen = CalibrationSettings(**paper_calibration(f"paper:{name}", 2))
        assert list(chosen.bins) == [0, *map(int, edges.split())]
        assert (chosen.threshold, chosen.per_bin) == (threshold, per_bin)
        assert (chosen.objective, chosen.n_select, chosen.n_estimate, chosen.on) == ("paper", 32, 256, "training")
        assert (chosen.bound, chosen.alpha) == ("paper", 0.025)
    chosen = CalibrationSettings(**paper_calibration("paper", 5))
    assert (chosen.bins, chosen.alpha) == ("auto", 0.05)


def test_the_certification_of_the_paper_is_what_it_prints() -> None:
    chosen = paper_certification(5)
    printed = {"alpha": 0.05, "n_select": 1000, "n_estimate": 4000, "sampling": "fixed", "bound": "paper"}
    assert chosen == printed
    assert set(chosen) <= set(asdict(CERTIFICATION))
    # Two classes: alpha / 2 for the lower bound and alpha / 2 for the rival's upper bound, which is its complement.
    alpha = paper_certification(2)["alpha"]
    low, high = ad.clopper_pearson(3900, 4000, 0.05 / 2)[0], ad.clopper_pearson(100, 4000, 0.05 / 2)[1]
    assert vote_bounds(Looks.fixed(4000, alpha), [[100, 3900]], 1) == pytest.approx((low, high), abs=1e-12)
