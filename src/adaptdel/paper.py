"""What the paper prints: the settings of ``--settings paper``, beside those of the authors' released code."""

from __future__ import annotations

from typing import Any

from adaptdel.core.checks import check_choice
from adaptdel.settings import UNSMOOTHED

# The paper's table of parameters and its Section 5; FreeLB's settings are not printed there.
PAPER_TRAINING: dict[str, Any] = {
    **{"model": "roberta-base", "rate": 0.9, "validation": 0.1, "class_weight": "none"},
    **{"epochs": 200, "warmup": 10.0, "patience": 25, "batch_size": 32, "batches": "shuffled"},
    **{"learning_rate": 2e-5, "weight_decay": 1e-6, "clip": 1.0, "precision": "float32", "dtype": "float32"},
    "max_length": 0,  # not printed
}
PAPER_RATES = (0.7, 0.99)  # of AdaptDel+ in training
# Where the authors' code, Dovermore/nlp-smoothing-software, differs from the paper.
RELEASED_TRAINING = {
    "weight_decay": 0.01,
    "max_length": 256,
    "patience": "25, of the accuracy of votes, every 5th epoch",
}


def paper_training(method: str) -> dict[str, Any]:
    """The fields of `TrainingSettings` as the paper prints them, for a method.

    >>> from adaptdel.settings import TrainingSettings
    >>> TrainingSettings.from_dict(paper_training("adaptdel+")).resolved([230] * 22_500).transformer.epochs
    200
    """
    fields_of_noise = {"rates": PAPER_RATES} if method == "adaptdel+" else {}
    without = ("rate",) if method in UNSMOOTHED else ()
    values = {name: value for name, value in PAPER_TRAINING.items() if name not in without}
    return {"method": method, **values, **fields_of_noise}


# The paper's table of AdaptDel+'s parameters, by data set; the last bin has no upper end.
PAPER_CALIBRATION: dict[str, dict[str, Any]] = {
    "yelp": {
        "bins": [0, 28, 82, 135, 189, 243, 296, 350, 404, 457, 511, 565, 619, 672, 726, 780, 887],
        "threshold": 0.40,
        "per_bin": 200,
    },
    "imdb": {
        "bins": [0, 72, 133, 194, 256, 318, 379, 440, 502, 564, 625, 686, 748, 810, 871, 932],
        "threshold": 0.75,
        "per_bin": 200,
    },
    "spamassassin": {"bins": [0, 137, 230, 324], "threshold": 0.75, "per_bin": 50},
    "lun": {"bins": [0, 85, 150, 216, 282, 347], "threshold": 0.75, "per_bin": 200},
}
PAPER_ATTACK = {"inputs": 200, "votes": 100, "queries": 3000, "seconds": 7200.0}
PAPER_ALPHA = 0.05
PAPER_PRESETS = ("paper", *(f"paper:{name}" for name in PAPER_CALIBRATION))


def paper_calibration(preset: str, classes: int) -> dict[str, Any]:
    """The fields of `CalibrationSettings` as the paper prints them: "paper", or for a data set such as "paper:imdb".

    The paper calibrates on the training set, with the bounds that it certifies with. "paper" has automatic bins, and
    what is printed for most data sets.

    >>> paper_calibration("paper:spamassassin", 2)["bins"]
    [0, 137, 230, 324]
    """
    check_choice("settings", preset, PAPER_PRESETS)
    shared = {"objective": "paper", "threshold": 0.75, "per_bin": 200, "n_select": 32, "n_estimate": 256}
    bounds = {name: value for name, value in paper_certification(classes).items() if name in ("alpha", "bound")}
    return {**shared, **bounds, "on": "training", **PAPER_CALIBRATION.get(preset.partition(":")[2], {})}


def paper_certification(classes: int) -> dict[str, Any]:
    """How the paper certifies a model with this many classes.

    The paper spends alpha / 2 on each of its bounds, for two classes as well. There the two bounds are those of one
    probability at alpha / 2, so that alpha itself is halved.

    >>> paper_certification(5)["alpha"], paper_certification(2)["alpha"]
    (0.05, 0.025)
    """
    alpha = PAPER_ALPHA / 2 if classes == 2 else PAPER_ALPHA
    return {"alpha": alpha, "n_select": 1000, "n_estimate": 4000, "sampling": "fixed", "bound": "paper"}
