"""A noise of your own: each copy keeps a window of contiguous words. `adaptdel train --import own_noise ...`."""

from dataclasses import dataclass

import numpy as np

import adaptdel as ad


@ad.register_noise("window")
@dataclass(frozen=True)
class Window(ad.Noise):
    """Keep ``width`` contiguous tokens, or all of a shorter text; every window is equally likely."""

    immutable = True  # so that results which depend on it alone may be cached
    width: int

    def windows(self, length):
        return np.maximum(length - self.width, 0) + 1

    def draw_rows(self, length, size, rng):
        start = rng.integers(self.windows(length), size=(size, 1))
        return (np.arange(length) >= start) & (np.arange(length) < start + self.width)

    def share_removed(self, length):
        return 1 - min(self.width, length) / max(length, 1)

    def ball(self, length, radius, threat, *, shortest_only=False):
        d, i, s = threat.edits(length, radius)  # numbers of deletions, insertions and substitutions
        touched = self.width * (d + s) + max(self.width - 1, 1) * i  # windows that hold a changed token or a gap
        yield length + i - d, length - d - s, np.maximum(self.windows(length) - touched, 0)

    def overlap(self, length, other_length, common, intact):  # intact windows occur in both texts
        return ad.Overlap.alike(intact / self.windows(length), intact / self.windows(other_length), common)

    def exact_overlap(self, number, length, other_length, common, intact):  # the same for `adaptdel verify`
        return ad.ExactOverlap(*(number(intact) / int(self.windows(n)) for n in (length, other_length)))

    def calibration_candidates(self, lengths):  # for `adaptdel calibrate`
        return [Window(width) for width in (2, 3, 4, 6, 8)]
