"""Which rows of a file a model is calibrated on: those that were held out in its training, if there are enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adaptdel.calibration.bins import equal_width_edges, make_bins
from adaptdel.checks import check_choice
from adaptdel.data import Examples, held_out
from adaptdel.units import Unit

CHOICES = ("auto", "held-out", "train", "all")
ENOUGH_BINS = 3  # rows that were held out are enough if they make so many bins


@dataclass(frozen=True)
class Rows:
    """The rows to calibrate on.

    Attributes:
        texts: their texts.
        labels: their labels.
        note: what there is to say about the choice, or "".
    """

    texts: list[str]
    labels: list[Any]
    note: str = ""


def choose_rows(
    examples: Examples,
    training: Mapping[str, Any] | None,
    on: str,
    *,
    unit: Unit,
    bins: str | Sequence[float],
    min_count: int,
) -> Rows:
    """The rows that ``on`` names.

    "held-out" are those that the training of the model set aside, "train" the others, "all" are all. "auto" takes those
    held out of the training file, if they leave every given bin ``min_count`` rows, or make at least three bins; else
    all rows. Rows that were trained on make a model look surer than it is.
    """
    check_choice("on", on, CHOICES)
    share = (training or {}).get("validation")
    everything = Rows(examples.texts, examples.labels)
    if on == "all":
        return everything
    if on == "auto":
        if training is None:
            return everything
        if training.get("data", {}).get("digest") != examples.digest:
            return Rows(
                examples.texts, examples.labels, "not the file that the model was trained on: all rows are used"
            )
    if not share:
        if on == "auto":
            return Rows(examples.texts, examples.labels, "no rows of the file were held out: trained rows are used")
        raise ValueError(f"on must be 'all' or 'auto' for a model whose training held out no rows, got {on!r}")
    assert training is not None
    apart = [held_out(text, share, training["seed"]) for text in examples.texts]
    chosen = _some(examples, [out == (on != "train") for out in apart])
    if not chosen.texts:
        raise ValueError(f"on must leave at least one row to calibrate on, got {on!r}")
    if on == "auto" and not _enough([len(unit.split(text)) for text in chosen.texts], bins, min_count):
        few = f"only {len(chosen.texts)} rows were held out, too few for the bins: trained rows are used beside them"
        return Rows(examples.texts, examples.labels, few)
    return Rows(chosen.texts, chosen.labels, f"calibrating on {len(chosen.texts)} rows: {_WORDS[on]}")


_WORDS = {"auto": "those held out in training", "held-out": "those held out in training", "train": "those trained on"}


def _some(examples: Examples, wanted: list[bool]) -> Rows:
    pairs = [(text, label) for text, label, use in zip(examples.texts, examples.labels, wanted, strict=True) if use]
    return Rows([text for text, _ in pairs], [label for _, label in pairs])


def _enough(lengths: list[int], bins: str | Sequence[float], min_count: int) -> bool:
    if isinstance(bins, str):
        return len(lengths) >= min_count and len(equal_width_edges(lengths, min_count=min_count)) >= ENOUGH_BINS
    return all(sum(length in bin for length in lengths) >= min_count for bin in make_bins(bins, 1))
