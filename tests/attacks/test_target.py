"""What attacks ask a model of any kind."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.attacks.adaptive import edit_distance
from adaptdel.attacks.attack_run import InputAttack
from adaptdel.attacks.audit import Auditor, Claim
from adaptdel.attacks.target import FreshVotes, Target
from adaptdel.certification.scores import Scores
from adaptdel.core.threat import EVERY_SET, Threat
from adaptdel.settings import ATTACK

from ..exact import neighbours
from .conftest import HAM, SPAM, texts, toy


def target(model: ad.SmoothedClassifier, **changes: Any) -> Target:
    return Target(model.certifier(), replace(ATTACK, **changes))


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


@pytest.mark.parametrize("ops", EVERY_SET, ids=",".join)
@pytest.mark.parametrize("bound", [2.0, 5.0])
def test_the_closest_known_text_is_the_closest_of_all_texts_of_known_words(bound: float, ops: Any) -> None:
    """By enumeration of all texts within three edits."""
    model = toy(bound, ops)
    oracle = model.oracle()
    given = ["buy buy", "buy cheap lunch", "noon lunch buy", "cheap noon noon", "noon", "buy buy cheap noon"]
    for text, certificate in zip(given, model.certify(given), strict=True):
        known = oracle.against_known(certificate)
        assert known.radius >= certificate.radius
        assert known.worst_texts(known.radius) == []
        tokens = tuple(text.split())
        near = [other for other, _ in neighbours(tokens, ("buy", "cheap", "lunch", "noon"), ops, 3)]
        answers = model.predict([" ".join(map(str, other)) for other in near])
        changed = [other for other, answer in zip(near, answers, strict=True) if answer != certificate.label]
        distances = [edit_distance(tokens, other, ops) for other in changed]
        if distances:
            assert min(distances) == known.radius + 1
            assert tuple(known.counterexample().split()) in changed
        else:
            assert known.radius >= min(3, Threat(ops).search_limit(len(tokens)))


def test_a_model_of_which_nothing_is_known_is_queried_and_audited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither do copies vote nor is the effect of a single token known: answers and certificates are enough."""
    model = ad.AdditiveClassifier(unit="char", ngram=2, levels=2, iterations=20, progress=False)
    model.fit(*map(list, zip(*texts(100, 6), strict=True)))
    attacked = Target(model.certifier())
    batch = [text for text, _ in texts(8, 6, seed=1)]
    shares, certificates = attacked.query(batch), attacked.certificates(batch)
    assert np.allclose(shares.sum(axis=1), 1)
    assert shares.argmax(axis=1).tolist() == [certificate.answer for certificate in certificates]
    assert (attacked.queries, attacked.votes) == (8, 0)
    assert attacked.verify((*batch[0],), 1 - certificates[0].answer) == FreshVotes(True, certificates[0].answer, True)
    with pytest.raises(ValueError, match="the adaptive attack needs"):
        InputAttack(attacked, "adaptive", None, {})
    for more, failed in ((0, False), (30, True)):
        pairs = zip(batch, certificates, strict=True)
        claims = [Claim.of("a text", (*text,), c, radius=c.radius + more) for text, c in pairs]
        report = Auditor(attacked.certifier)(claims)
        assert (report.certificates, report.queries, report.failed) == (8, 64, failed)
    monkeypatch.setattr(Scores, "predicted", lambda self, plan: 1 - self.answer)  # scores are not what decides
    assert attacked.query(batch).argmax(axis=1).tolist() == [1 - answer for answer in shares.argmax(axis=1)]
