"""Random bits for noise: 32-bit draws, the same on every machine and for every number of rows drawn together."""

from __future__ import annotations

from math import ceil, sqrt

import numpy as np
import numpy.typing as npt

from adaptdel.core.checks import BoolArray

DRAW_BYTES = 4  # of a draw
_BLOCK_BYTES = 120_000  # of rows that are drawn together: little enough for the cache of a core


def draws(rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.uint32]:
    """Rows of 32-bit integers: halves of 64-bit draws, the lower first; a row begins with a fresh draw."""
    rows, length = shape
    return _words(rng, (rows, (length + 1) // 2)).view("<u4")[:, :length]


def _words(rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.uint64]:
    """64-bit draws, in the order of the generator, lowest byte first in memory."""
    source = rng.bit_generator
    if isinstance(source, np.random.Philox):  # its raw draws are the same integers, without the cost of a call
        return source.random_raw(shape[0] * shape[1]).reshape(shape).astype("<u8", copy=False)
    return rng.integers(0, 2**64, size=shape, dtype=np.uint64).astype("<u8", copy=False)


def draw_at_least(rng: np.random.Generator, shape: tuple[int, int], threshold: int) -> BoolArray:
    """Whether independent 32-bit draws are at or above a threshold in [0, 2**32]; a row begins with a fresh draw.

    Mostly the leading byte of a draw decides. Only where it equals the leading byte of the threshold are the other 24
    bits compared. They come from spare draws at the end of the row, which are enough for all but one row in ten
    thousand or fewer.
    """
    rows, length = shape
    first, remainder = divmod(threshold, 2**24)
    if first == 2**8:
        return np.zeros(shape, dtype=np.bool_)
    width = -(-length // 8)
    spare = (ceil(length / 256 + 4 * sqrt(length / 256)) + 5) // 2
    kept = np.empty(shape, dtype=np.bool_)
    height = max(1, _BLOCK_BYTES // (8 * (width + spare)))
    for top in range(0, rows, height):
        _draw_block(rng, kept[top : top + height], (first, remainder), (width, spare))
    return kept


def _draw_block(rng: np.random.Generator, kept: BoolArray, threshold: tuple[int, int], sizes: tuple[int, int]) -> None:
    """Fill rows that are drawn together; ``sizes``: the 64-bit draws of a row, for leading bytes and spare ones."""
    rows, length = kept.shape
    first, remainder = threshold
    width, spare = sizes
    state = rng.bit_generator.state
    words = _words(rng, (rows, width + spare))
    leading = np.ascontiguousarray(words[:, :width].view(np.uint8)[:, :length])
    if not remainder:
        np.greater_equal(leading, first, out=kept)
        return
    flat = kept.reshape(-1)
    np.equal(leading, first, out=kept)
    ties = np.flatnonzero(flat)
    np.greater(leading, first, out=kept)
    row = ties // length if length else ties
    position = np.arange(len(row)) - np.searchsorted(row, np.arange(rows))[row]
    if position.max(initial=0) < 2 * spare:
        rest = words.view("<u4").reshape(-1)[row * (2 * (width + spare)) + 2 * width + position]
        flat[ties] = rest >> 8 >= remainder
    elif rows == 1:
        flat[ties] = draws(rng, (1, len(row)))[0] >> 8 >= remainder
    else:  # draw again row by row, so that a row does not depend on those drawn with it
        rng.bit_generator.state = state
        for number in range(rows):
            _draw_block(rng, kept[number : number + 1], threshold, sizes)
