"""What the paper prints: RoBERTa-base, one A100. Each table is as in the paper, without its units.

In the main table, the block headed SpamAssassin is IMDB and the second headed Yelp is SpamAssassin: see the ablation.
"""

from __future__ import annotations


def _table(text: str) -> dict[tuple[str, str], list[float | None]]:
    """The rows of a table by their first two words; a dash is a value that is not printed."""
    rows = [line.split() for line in text.strip().splitlines()]
    return {(row[0], row[1]): [None if cell == "-" else float(cell) for cell in row[2:]] for row in rows}


# Summary of data sets: mean words, training, validation and test rows.
DATA = {
    "yelp": (134.1, 585_000, 65_000, 10_000),
    "imdb": (231.2, 22_500, 2_500, 25_000),
    "spamassassin": (228.2, 2_152, 239, 2_378),
    "lun": (269.9, 13_416, 1_490, 6_454),
}

# Main table: clean accuracy %, mean certified radius, its standard error, Wasserstein distance, log-cardinality.
MAIN = _table(
    """
    yelp         nosmooth  69.25     -     -    -     -
    yelp         ranmask   57.15  0.61 0.013 0.31  0.00
    yelp         cert-ed   58.57  0.75 0.013 0.26  7.16
    yelp         adaptdel  56.98  0.99 0.023 0.28  6.89
    yelp         adaptdel+ 56.22  0.77 0.016 0.24  6.78
    imdb         nosmooth  93.48     -     -    -     -
    imdb         ranmask   86.87  2.33 0.012 0.43 14.02
    imdb         cert-ed   88.26  2.35 0.012 0.42 14.49
    imdb         adaptdel  87.99  2.86 0.018 0.20 14.77
    imdb         adaptdel+ 88.06  2.77 0.016 0.24 14.01
    spamassassin nosmooth  98.02     -     -    -     -
    spamassassin ranmask   97.65  5.09 0.031 0.58 37.49
    spamassassin cert-ed   97.81  5.03 0.031 0.57 38.66
    spamassassin adaptdel  97.73  6.25 0.053 0.30 38.79
    spamassassin adaptdel+ 96.93 12.35 0.152 0.14 72.74
    lun          nosmooth  99.16     -     -    -     -
    lun          ranmask   97.91  4.83 0.022 0.31 34.51
    lun          cert-ed   98.20  4.94 0.019 0.34 37.68
    lun          adaptdel  97.88  5.65 0.028 0.30 38.90
    lun          adaptdel+ 95.09 10.69 0.088 0.24 66.90
    """
)

# Ablation of AdaptDel over p_lb in %: k, and the columns of the main table.
ABLATION = _table(
    """
    yelp         50  65 67.89  0.16 0.006 0.44  0.00
    yelp         60  52 66.84  0.32 0.007 0.34  0.00
    yelp         70  39 65.33  0.41 0.009 0.31  6.32
    yelp         80  26 63.13  0.61 0.013 0.27  6.60
    yelp         90  13 56.98  0.99 0.023 0.28  6.89
    yelp         95   6 48.40  1.41 0.037 0.32  6.92
    imdb         50 115 94.64  0.34 0.005 0.29  0.00
    imdb         60  92 93.15  0.86 0.005 0.39  6.83
    imdb         70  69 91.29  1.01 0.007 0.29  6.83
    imdb         80  46 90.59  1.61 0.010 0.25 12.51
    imdb         90  23 87.99  2.86 0.018 0.20 14.77
    imdb         95  11 85.25  4.26 0.028 0.16 20.87
    spamassassin 50 115 98.15  0.53 0.013 0.45  0.00
    spamassassin 60  92 98.19  1.25 0.011 0.45  7.02
    spamassassin 70  69 97.98  1.61 0.019 0.34  7.02
    spamassassin 80  46 97.98  3.20 0.024 0.36 20.22
    spamassassin 90  23 97.73  6.25 0.053 0.30 38.79
    spamassassin 95  11 97.69 11.58 0.111 0.24 69.84
    lun          50 135 99.32  0.53 0.006 0.34  7.18
    lun          60 108 99.36  1.25 0.006 0.67  7.18
    lun          70  81 99.10  1.55 0.009 0.42  7.30
    lun          80  54 98.74  2.96 0.012 0.36 20.51
    lun          90  27 97.88  5.65 0.028 0.30 38.90
    lun          95  13 96.19  9.64 0.061 0.21 65.74
    """
)

# Costs: epochs of training, seconds an epoch, hours of calibration, milliseconds of certifying an input.
COSTS = _table(
    """
    yelp         nosmooth   30 6269   -     -
    yelp         ranmask    60 6252   -  9313
    yelp         cert-ed    60 2334   -  2633
    yelp         adaptdel  155  989   -  2129
    yelp         adaptdel+  90 3146 9.5  2469
    imdb         nosmooth   30  258   -     -
    imdb         ranmask    60  341   - 13331
    imdb         cert-ed    65  128   -  3311
    imdb         adaptdel   85   50   -  2896
    imdb         adaptdel+ 140   73  12  1812
    spamassassin nosmooth   40   27   -     -
    spamassassin ranmask    50   35   - 13899
    spamassassin cert-ed    40   13   -  3319
    spamassassin adaptdel   55    6   -  4090
    spamassassin adaptdel+  65   14   8  1857
    lun          nosmooth   55  143   -     -
    lun          ranmask    65  258   - 14641
    lun          cert-ed    60   55   -  4819
    lun          adaptdel   70   41   -  3174
    lun          adaptdel+  75   83  12  2235
    """
)

# Attacks: accuracy before and after BAE-I, BERT-Attack, CLARE, DeepWordBug and TextFooler.
RECIPES = ("bae-i", "bert-attack", "clare", "deepwordbug", "textfooler")
ATTACKS = _table(
    """
    imdb         adaptdel 0.860 0.660 0.865 0.575 0.890 0.665 0.885 0.540 0.860 0.485
    imdb         cert-ed  0.885 0.690 0.860 0.580 0.880 0.675 0.880 0.540 0.880 0.530
    imdb         freelb   0.940 0.730 0.940 0.060 0.940 0.735 0.940 0.485 0.940 0.100
    imdb         ranmask  0.875 0.680 0.885 0.535 0.880 0.680 0.880 0.495 0.880 0.430
    lun          adaptdel 0.980 0.960 0.980 0.930 0.980 0.955 0.985 0.920 0.985 0.955
    lun          cert-ed  0.995 0.955 0.995 0.960 0.995 0.955 0.990 0.960 1.000 0.960
    lun          freelb   0.995 0.990 0.995 0.870 0.995 0.975 0.995 0.900 0.995 0.900
    lun          ranmask  0.980 0.915 0.980 0.900 0.975 0.915 0.970 0.910 0.970 0.920
    spamassassin adaptdel 0.975 0.945 0.970 0.940 0.970 0.935 0.970 0.945 0.960 0.940
    spamassassin cert-ed  0.965 0.950 0.965 0.945 0.965 0.950 0.970 0.945 0.970 0.950
    spamassassin freelb   0.970 0.960 0.970 0.575 0.970 0.960 0.970 0.795 0.970 0.510
    spamassassin ranmask  0.965 0.945 0.965 0.935 0.955 0.945 0.965 0.930 0.965 0.930
    """
)
