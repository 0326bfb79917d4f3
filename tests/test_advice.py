"""Advice follows from what can be certified; plans of radii and votes."""

from __future__ import annotations

import pytest

from adaptdel import Deletion, FixedRate, Masking
from adaptdel.advice import few_kept, lower_rate, reachable_radius, what_may_help
from adaptdel.core.noise import Noise


@pytest.mark.parametrize("noise", [Deletion, Masking], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("length", [1, 2, 4, 9, 15, 40, 230])
def test_a_lower_rate_is_advised_only_where_it_certifies_an_edit(noise: type[Noise], length: int) -> None:
    advised = 0
    for rate in (0.3, 0.55, 0.6, 0.7, 0.9, 0.95, 0.99):
        used = Deletion(FixedRate(rate)) if noise is Deletion else Masking(rate)
        lower = lower_rate(used, [length])
        assert ("lower rate" in what_may_help(used, [length], "balanced")) == (lower is not None)
        assert "lower rate" not in (few_kept(used, [length]) or "") or lower is not None
        if lower is not None:
            advised += 1
            assert lower < rate
            changed = Deletion(FixedRate(lower)) if noise is Deletion else Masking(lower)
            assert reachable_radius(changed, length) >= 1
    assert advised or (length < 9 and noise is Masking)
