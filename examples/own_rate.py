"""A rate that depends on the content: DNA of many repeats needs fewer letters to be recognised."""

from dataclasses import dataclass
from itertools import pairwise

import adaptdel as ad


@ad.register_noise("repeats")
@dataclass(frozen=True)
class RepeatsDeletion(ad.ContentDeletion):
    """Deletes more tokens of a text in which many tokens repeat the one before."""

    immutable = True  # results that depend on it alone may be cached
    usual: float = 0.55
    repeated: float = 0.7

    def rate_of(self, tokens):
        repeats = sum(a == b for a, b in pairwise(tokens))
        return self.repeated if 2 * repeats > len(tokens) else self.usual


if __name__ == "__main__":
    texts = ["aaaaaaca", "ccacaaaa", "ggtgggtt", "tttggtgg", "acaaacaa", "gtgttggg"] * 5
    labels = ["left", "left", "right", "right", "left", "right"] * 5
    noise = RepeatsDeletion(vocabulary=tuple("acgt"), max_radius=2)  # certified for texts of these letters
    model = ad.SmoothedClassifier(noise=noise, unit="char", n_estimate=2000).fit(texts, labels)
    for text in ("aaaaaaac", "acgtgttg"):
        [certificate] = model.certify([text])
        print(certificate.label, certificate.radius, noise.rate_of(text))
