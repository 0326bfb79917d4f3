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
        first, last = threat.reach(length, radius)
        other = np.arange(first, last + 1)
        common = threat.least_common(length, other, radius)  # the edits that touch most windows at each length
        inserted = np.maximum(other - length, 0) if "sub" in threat.ops else other - common
        touched = self.width * (length - common) + max(self.width - 1, 1) * inserted  # that hold a change or a gap
        yield other, common, np.maximum(self.windows(length) - touched, 0)

    def overlap(self, length, other_length, common, intact):  # intact windows occur in both texts
        return ad.Overlap.alike(intact / self.windows(length), intact / self.windows(other_length), common)

    def exact_overlap(self, number, length, other_length, common, intact):  # the same for `adaptdel verify`
        return ad.ExactOverlap(*(number(intact) / int(self.windows(n)) for n in (length, other_length)))

    def calibration_candidates(self, lengths):  # for `adaptdel calibrate`
        return [Window(width) for width in (2, 3, 4, 6, 8)]
