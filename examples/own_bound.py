"""A bound of your own: a class loses at most the total variation distance between the copies of the two texts."""

import numpy as np
from scipy.stats import binom

import adaptdel as ad


@ad.register_bound("total_variation")
def total_variation(p, overlap):
    """The probability at the text, minus the distance: 1 minus the mass that the copies of both texts share."""
    kept = np.arange(overlap.common.max(initial=0) + 1)  # of the common tokens
    number = overlap.common[:, None]
    here = overlap.inside[:, None] * binom.pmf(kept, number, 1 - overlap.psi[:, None])
    there = overlap.other_inside[:, None] * binom.pmf(kept, number, 1 - overlap.other_psi[:, None])
    return p - (1 - np.minimum(here, there).sum(axis=1)) - 1e-9  # rounded down


if __name__ == "__main__":
    noise = ad.Deletion(ad.LengthRate(p_min=0.8, k=6))
    for bound in ("tight", "paper", "total_variation"):
        print(bound, ad.certified_radius(0.99, length=40, noise=noise, bound=bound))
