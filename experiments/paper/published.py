"""What the paper prints: its main table, its ablation, its costs. RoBERTa, on its own splits.

In the main table as printed, the second block is IMDB and the third is SpamAssassin (compare the ablation).
"""

from __future__ import annotations

# data set: method: (clean accuracy %, mean radius, its standard error, Wasserstein distance, log cardinality)
MAIN: dict[str, dict[str, tuple[float | None, ...]]] = {
    "yelp": {
        "nosmooth": (69.25, None, None, None, None),
        "ranmask": (57.15, 0.61, 0.013, 0.31, 0.00),
        "cert-ed": (58.57, 0.75, 0.013, 0.26, 7.16),
        "adaptdel": (56.98, 0.99, 0.023, 0.28, 6.89),
        "adaptdel+": (56.22, 0.77, 0.016, 0.24, 6.78),
    },
    "imdb": {
        "nosmooth": (93.48, None, None, None, None),
        "ranmask": (86.87, 2.33, 0.012, 0.43, 14.02),
        "cert-ed": (88.26, 2.35, 0.012, 0.42, 14.49),
        "adaptdel": (87.99, 2.86, 0.018, 0.20, 14.77),
        "adaptdel+": (88.06, 2.77, 0.016, 0.24, 14.01),
    },
    "spamassassin": {
        "nosmooth": (98.02, None, None, None, None),
        "ranmask": (97.65, 5.09, 0.031, 0.58, 37.49),
        "cert-ed": (97.81, 5.03, 0.031, 0.57, 38.66),
        "adaptdel": (97.73, 6.25, 0.053, 0.30, 38.79),
        "adaptdel+": (96.93, 12.35, 0.152, 0.14, 72.74),
    },
    "lun": {
        "nosmooth": (99.16, None, None, None, None),
        "ranmask": (97.91, 4.83, 0.022, 0.31, 34.51),
        "cert-ed": (98.20, 4.94, 0.019, 0.34, 37.68),
        "adaptdel": (97.88, 5.65, 0.028, 0.30, 38.90),
        "adaptdel+": (95.09, 10.69, 0.088, 0.24, 66.90),
    },
}

# data set: rate %: (k, clean accuracy %, mean radius, aggregated log cardinality)
ABLATION: dict[str, dict[int, tuple[float, ...]]] = {
    "yelp": {
        50: (65, 67.89, 0.16, 0.00),
        60: (52, 66.84, 0.32, 0.00),
        70: (39, 65.33, 0.41, 6.32),
        80: (26, 63.13, 0.61, 6.60),
        90: (13, 56.98, 0.99, 6.89),
        95: (6, 48.40, 1.41, 6.92),
    },
    "imdb": {
        50: (115, 94.64, 0.34, 0.00),
        60: (92, 93.15, 0.86, 6.83),
        70: (69, 91.29, 1.01, 6.83),
        80: (46, 90.59, 1.61, 12.51),
        90: (23, 87.99, 2.86, 14.77),
        95: (11, 85.25, 4.26, 20.87),
    },
    "spamassassin": {
        50: (115, 98.15, 0.53, 0.00),
        60: (92, 98.19, 1.25, 7.02),
        70: (69, 97.98, 1.61, 7.02),
        80: (46, 97.98, 3.20, 20.22),
        90: (23, 97.73, 6.25, 38.79),
        95: (11, 97.69, 11.58, 69.84),
    },
    "lun": {
        50: (135, 99.32, 0.53, 7.18),
        60: (108, 99.36, 1.25, 7.18),
        70: (81, 99.10, 1.55, 7.30),
        80: (54, 98.74, 2.96, 20.51),
        90: (27, 97.88, 5.65, 38.90),
        95: (13, 96.19, 9.64, 65.74),
    },
}

# data set: method: (seconds of an epoch of training, milliseconds of certifying an input), on an A100
COSTS: dict[str, dict[str, tuple[int, int | None]]] = {
    "yelp": {
        "nosmooth": (6269, None),
        "ranmask": (6252, 9313),
        "cert-ed": (2334, 2633),
        "adaptdel": (989, 2129),
        "adaptdel+": (3146, 2469),
    },
    "imdb": {
        "nosmooth": (258, None),
        "ranmask": (341, 13331),
        "cert-ed": (128, 3311),
        "adaptdel": (50, 2896),
        "adaptdel+": (73, 1812),
    },
    "spamassassin": {
        "nosmooth": (27, None),
        "ranmask": (35, 13899),
        "cert-ed": (13, 3319),
        "adaptdel": (6, 4090),
        "adaptdel+": (14, 1857),
    },
    "lun": {
        "nosmooth": (143, None),
        "ranmask": (258, 14641),
        "cert-ed": (55, 4819),
        "adaptdel": (41, 3174),
        "adaptdel+": (83, 2235),
    },
}
