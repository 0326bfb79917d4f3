"""Which rows of a labelled file a calibration uses: for the rate, and for the threshold of a protected class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adaptdel.calibration.search import equal_width_edges, make_bins
from adaptdel.core.checks import check_choice
from adaptdel.text.data import Examples, held_out, held_out_rows, without_spacing
from adaptdel.text.units import Tokens
from adaptdel.training.thresholds import enough_negatives

CHOICES = ("auto", "held-out", "train", "all")
ENOUGH_BINS = 3  # "auto" uses the held-out rows if they give at least so many bins
RESERVED = 1 / 2  # of the rows, for the threshold of a protected class
RESERVING = 15485863  # added to the seed, so that reserved rows do not depend on which rows were held out


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
    reserved: Sequence[bool] | None = None,
) -> CalibrationRows:
    """Choose the rows to calibrate on, among those that are not ``reserved`` for the threshold of a protected class.

    "held-out" are the rows that the training of the model held out, "train" the others, "all" are all rows. "auto" uses
    the held-out rows of the training file if they leave ``min_count`` rows in every bin, or give at least three
    automatic bins; otherwise it uses all rows. A model is more confident on rows that it was trained on.
    ``split`` gives the tokens of a text.
    """
    check_choice("on", on, CHOICES)
    share = (training or {}).get("validation")
    free = [True] * len(examples.texts) if reserved is None else [not is_reserved for is_reserved in reserved]
    everything = select_rows(examples, free)
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
    held = zip(rows_held_out(examples, training), free, strict=True)
    chosen = select_rows(examples, [is_held == (on != "train") and is_free for is_held, is_free in held])
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


def threshold_rows(
    examples: Examples,
    training: Mapping[str, Any] | None,
    protect: Any,
    max_false_positives: float,
    *,
    trains_again: bool,
    refits: bool,
    seed: int,
) -> list[bool]:
    """The rows on which the threshold of a protected class is chosen, and on which no rate is measured.

    If the held-out rows are enough to prove the rate of false positives, and the rate is chosen by a cross-validation
    of the others, these are all held-out rows; otherwise half of them. Where this leaves too few, and training takes
    seconds, they are half of all rows, to be voted on in a cross-validation. Rows that differ in spacing only stay
    together.

    Args:
        examples: the rows of the file.
        training: the record of the training of the model.
        protect: the protected class.
        max_false_positives: the rate of rows of the other class that may get its answer.
        trains_again: whether the model is trained in seconds.
        refits: whether the model is trained again under every candidate rate.
        seed: of the choice.
    """
    is_training_file = training is not None and training["data"]["digest"] == examples.digest
    held = (
        rows_held_out(examples, training) if training is not None and is_training_file else [True] * len(examples.texts)
    )

    drawn = [held_out(without_spacing(text), RESERVED, seed + RESERVING) for text in examples.texts]

    def are_enough(rows: Sequence[bool]) -> bool:
        count = sum(use and label != protect for use, label in zip(rows, examples.labels, strict=True))
        return count >= enough_negatives(max_false_positives)

    if is_training_file and refits and are_enough(held):
        return held
    half = [is_held and is_drawn for is_held, is_drawn in zip(held, drawn, strict=True)]
    if is_training_file and trains_again and not are_enough(half):
        return drawn
    if not any(use and label != protect for use, label in zip(half, examples.labels, strict=True)):
        raise ValueError(
            f"protect needs rows of the other class than {protect!s} that the model was not trained on, got none: give "
            "them with --threshold-data"
        )
    return half
