"""What a recipe queries: vote shares."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np

import adaptdel as ad
from adaptdel.attacks.target import SmoothedTarget
from adaptdel.settings import ATTACK

from .conftest import HAM, SPAM, texts


def target(model: ad.SmoothedClassifier, **changes: Any) -> SmoothedTarget:
    return SmoothedTarget(model.certifier(), replace(ATTACK, **changes))


def test_a_query_is_a_table_of_vote_shares(deletion: ad.SmoothedClassifier) -> None:
    batch = [text for text, _ in texts(6, 40, seed=2)]
    query = target(deletion)
    table = query.query(batch)
    assert table.shape == (6, 2)
    assert np.allclose(table.sum(axis=1), 1)  # so that TextAttack applies no softmax
    assert np.array_equal(table * 100, np.round(table * 100))
    assert (query.queries, query.votes) == (6, 600)
    assert np.array_equal(np.concatenate([query.query([text]) for text in batch]), table)  # whatever the batch
    assert np.array_equal(query.query(batch), table)  # one draw for each text


def test_a_threshold_is_at_one_half(deletion: ad.SmoothedClassifier) -> None:
    batch = [" ".join(random.Random(seed).choices([*SPAM, *HAM], k=40)) for seed in range(30)]
    plain = target(deletion).query(batch)[:, 1]
    for threshold in (0.2, 0.8):
        model = ad.SmoothedClassifier(deletion.base_, deletion.noise_, threshold=threshold, progress=False)
        scaled = target(model).query(batch)
        assert np.array_equal(np.argmax(scaled, axis=1) == 1, plain > threshold)
        assert np.allclose(scaled.sum(axis=1), 1)
