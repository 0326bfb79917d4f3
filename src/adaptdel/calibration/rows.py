"""Which rows of a labelled file a calibration uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adaptdel.calibration.search import equal_width_edges, make_bins
from adaptdel.core.checks import check_choice
from adaptdel.text.data import Examples, held_out, held_out_rows
from adaptdel.text.units import Tokens

CHOICES = ("auto", "held-out", "train", "all")
ENOUGH_BINS = 3  # "auto" uses the held-out rows if they give at least so many bins


@dataclass(frozen=True)
class CalibrationRows:
    """The rows to calibrate on.

    Attributes:
        texts: their texts.
        labels: their labels.
        note: a remark on the choice for the user, or "".
    """

    texts: list[str]
    labels: list[Any]
    note: str = ""


def choose_rows(
    examples: Examples,
    training: Mapping[str, Any] | None,
    on: str,
    *,
    split: Callable[[Any], Tokens],
    bins: str | Sequence[float],
    min_count: int,
) -> CalibrationRows:
    """Choose the rows to calibrate on.

    "held-out" are the rows that the training of the model held out, "train" the others, "all" are all rows. "auto" uses
    the held-out rows of the training file if they leave ``min_count`` rows in every bin, or give at least three
    automatic bins; otherwise it uses all rows. A model is more confident on rows that it was trained on.
    ``split`` gives the tokens of a text.
    """
    check_choice("on", on, CHOICES)
    share = (training or {}).get("validation")
    everything = select_rows(examples, [True] * len(examples.texts))
    if on == "all":
        return everything
    if on == "auto":
        if training is None:
            return everything
        if training.get("data", {}).get("digest") != examples.digest:
            return replace(everything, note="not the file that the model was trained on: all rows are used")
    if not share:
        if on == "auto":
            note = "no rows of the file were held out: rows that the model was trained on are used"
            return replace(everything, note=note)
        raise ValueError(f"on must be 'all' or 'auto' for a model whose training held out no rows, got {on!r}")
    assert training is not None
    chosen = select_rows(examples, [is_held == (on != "train") for is_held in rows_held_out(examples, training)])
    if not chosen.texts and on != "auto":
        raise ValueError(f"on must leave at least one row to calibrate on, got {on!r}")
    if on == "auto" and not _enough([len(split(text)) for text in chosen.texts], bins, min_count):
        note = f"only {len(chosen.texts)} rows were held out, too few for the bins: all rows are used"
        return replace(everything, note=note)
    which = "those the model was trained on" if on == "train" else "those held out in training"
    return CalibrationRows(chosen.texts, chosen.labels, f"calibrating on {len(chosen.texts)} rows: {which}")


def rows_held_out(examples: Examples, training: Mapping[str, Any]) -> list[bool]:
    """Which rows of the training file were held out; version 0.1 did not hold out the same share of every class."""
    share, seed = training.get("validation") or 0.0, training["seed"]
    if not share:
        return [False] * len(examples.texts)
    if training.get("stratified"):
        return held_out_rows(examples.texts, examples.labels, share, seed)
    return [held_out(text, share, seed) for text in examples.texts]


def select_rows(examples: Examples, selected: Sequence[bool]) -> CalibrationRows:
    """The selected rows of a file."""
    pairs = [(text, label) for text, label, use in zip(examples.texts, examples.labels, selected, strict=True) if use]
    return CalibrationRows([text for text, _ in pairs], [label for _, label in pairs])


def _enough(lengths: list[int], bins: str | Sequence[float], min_count: int) -> bool:
    if isinstance(bins, str):
        return len(lengths) >= min_count and len(equal_width_edges(lengths, min_count=min_count)) >= ENOUGH_BINS
    return all(sum(length in bin for length in lengths) >= min_count for bin in make_bins(bins, 1))
