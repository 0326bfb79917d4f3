"""The split of reviews by films, on made reviews whose films are known."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import films
from experiments.films import Films

FILMS, REVIEWS = 60, 5  # reviews of each film under each label
PLAIN = [f"word{number}" for number in range(300)]


def reviews() -> tuple[list[str], np.ndarray, np.ndarray]:
    """Texts, labels and films: the negative reviews film by film, then the positive ones in another order of films."""
    rng = np.random.default_rng(0)
    texts, labels, numbers = [], [], []
    for label in (0, 1):
        for film in rng.permutation(FILMS).tolist():
            for _ in range(REVIEWS):
                names = [f"Hero{film}x", f"Town{film}x", f"Maker{film}x"]
                texts.append(" ".join([*rng.choice(PLAIN, 30).tolist(), *names]))
                labels.append(label)
                numbers.append(film)
    return texts, np.array(labels), np.array(numbers)


def test_segments_are_the_films() -> None:
    texts, labels, numbers = reviews()
    segments = Films.of(texts, labels).segments
    pairs = {(segment, film, label) for segment, film, label in zip(segments, numbers, labels, strict=True)}
    assert len(pairs) == len(set(segments.tolist())) == 2 * FILMS


@pytest.mark.parametrize("seed", [0, 1])
def test_no_film_is_on_both_sides(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(films, "BLOCK", 30)
    texts, labels, numbers = reviews()
    training, held = Films.of(texts, labels).split(labels, seed)
    assert len(held) == 2 * 2 * 30
    assert len(training) > 200
    assert not set(numbers[training]) & set(numbers[held])
    assert np.mean(labels[training]) == 0.5
