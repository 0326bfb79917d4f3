"""The planner: noise from a short text, and plans for long inputs."""

from __future__ import annotations

from adaptdel import Deletion, FixedRate, LengthRate, Masking, NoNoise
from adaptdel.calibration.planner import noise_from_spec, plan


def test_a_million_tokens_are_listed_in_part() -> None:
    created = plan(10**5, Deletion(LengthRate(0.9, 23)))
    assert created.radii[0] == 0
    assert created.radii[-1] == created.largest > 2000
    assert len(created.radii) == 51
    assert list(created.least_probability) == sorted(created.least_probability)


def test_specs() -> None:
    assert noise_from_spec("ADAPTDEL:p_min=.5,k=2,p_max=0.9") == Deletion(LengthRate(0.5, 2, 0.9))
    assert noise_from_spec("CERT-ED:p=0.9") == Deletion(FixedRate(0.9))
    assert noise_from_spec("ranmask:fraction=0.9") == Masking(0.9)
    assert noise_from_spec("nosmooth") == NoNoise()
