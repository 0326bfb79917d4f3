"""The votes of a linear model: sums of whole numbers, exact in floating point whatever their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from adaptdel.checks import BoolArray, FloatArray, IntArray
from adaptdel.classifiers.features import Features
from adaptdel.units import Tokens

BLOCK = 2**16  # entries of a mask that are turned into floats at a time


@dataclass(frozen=True)
class Rows:
    """The weights of one input's tokens, a row a token, and what every copy has besides: whole numbers in floats.

    The weights are in single precision if that is exact for every sum of them, else in double.
    """

    weights: npt.NDArray[Any]
    offset: FloatArray


def token_rows(
    tokens: Tokens,
    features: Features,
    weights: npt.NDArray[np.int32],
    bias: npt.NDArray[np.int32],
    *,
    masking: bool,
) -> Rows:
    """Look up the weights of the tokens; those of the mask are the last of ``weights``."""
    columns, ends = features.table(tokens)
    sums = np.zeros((len(columns) + 1, len(bias)), dtype=np.int64)
    np.cumsum(weights[columns], axis=0, dtype=np.int64, out=sums[1:])
    rows = sums[ends[1:]] - sums[ends[:-1]]
    offset = bias.astype(np.int64)
    if masking:  # all tokens as masks, and for each token that is kept the difference
        mask = weights[-1].astype(np.int64)
        rows -= mask
        offset = offset + len(tokens) * mask
    largest = int(np.abs(rows).sum(axis=0).max(initial=0))
    precision = np.float32 if largest <= 2**24 else np.float64  # up to 2**24, every whole number is a float32
    return Rows(rows.astype(precision), offset.astype(np.float64))


def scores(rows: Rows, kept: BoolArray) -> FloatArray:
    """The scores of every copy, in blocks, so that a mask is never held in floats as a whole."""
    weights = rows.weights
    found = np.empty((len(kept), len(rows.offset)))
    found[:] = rows.offset
    width = min(max(1, len(weights)), BLOCK)
    height = max(1, BLOCK // width)
    for top in range(0, len(kept), height):
        for left in range(0, len(weights), width):
            block = kept[top : top + height, left : left + width].astype(weights.dtype)
            found[top : top + height] += block @ weights[left : left + width]
    return found


def total(rows: Rows) -> FloatArray:
    """The scores of the whole input, as one row."""
    return np.asarray(rows.weights.sum(axis=0, dtype=np.float64) + rows.offset)[None]


def best(found: FloatArray) -> IntArray:
    """The class numbers of the highest scores; the lowest on a tie. A single score is for class 1 against class 0."""
    if found.shape[1] == 1:
        return (found[:, 0] > 0).astype(np.int64)
    return np.argmax(found, axis=1).astype(np.int64)
