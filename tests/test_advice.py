"""Advice follows from what can be certified; plans of radii and votes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from adaptdel import AdditiveClassifier, Deletion, FixedRate, LengthRate, Masking, NoNoise
from adaptdel.advice import few_kept, lower_rate, noise_from_spec, plan, reachable_radius, unordered, what_may_help
from adaptdel.cli.plan import plan_command
from adaptdel.core.noise import Noise
from adaptdel.settings import default_noise
from adaptdel.training import TrainingJob, train_job


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


@pytest.mark.parametrize("fields", [{"method": "cert-ed", "rate": 0.6}, {"method": "exact", "levels": 3}])
def test_short_texts_are_told_what_was_computed(tmp_path: Path, fields: dict[str, object]) -> None:
    rows = [(f"{word} {n} at noon", label) for n in range(30) for word, label in (("pills", "spam"), ("lunch", "Spam"))]
    data = tmp_path / "data.csv"
    data.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    notes = list[str]()
    job = TrainingJob.from_dict({"data": str(data), "out": str(tmp_path / "m"), **fields})
    model = train_job(job, note=notes.append).model
    assert any("'Spam' and 'spam'" in note for note in notes)
    (sentence,) = [note for note in notes if note.startswith("short texts (median: 4 words)")]
    assert f"at most {reachable_radius(default_noise([4]), 4)} edit" in sentence
    exact = model if isinstance(model, AdditiveClassifier) else AdditiveClassifier(progress=False).fit(*zip(*rows))  # noqa: B905
    point = exact.front_[exact.base_classifier().options()["point"]]
    assert f"a mean radius of {point['mean_radius']:.2f} at {100 * point['accuracy']:.1f}% accuracy" in sentence
    shown = CliRunner().invoke(plan_command, ["--data", str(data)], catch_exceptions=False).stdout
    assert "edit of such a text" in shown
    assert "% accuracy on held-out" in shown


@pytest.mark.parametrize("method", ["cert-ed", "exact"])
def test_a_bag_of_characters_is_said_to_have_no_order(tmp_path: Path, method: str) -> None:
    rows = [f"{'aab ' * (n % 3 + 9)},0\n{'bcc ' * (n % 3 + 9)},1" for n in range(30)]
    (tmp_path / "data.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    for unit, is_told in (("char", True), ("word", False)):
        notes: list[str] = []
        fields = {"data": str(tmp_path / "data.csv"), "out": str(tmp_path / unit), "method": method, "unit": unit}
        train_job(TrainingJob.from_dict(fields), note=notes.append)
        assert any("without their order" in sentence and "ngram=5" in sentence for sentence in notes) == is_told
    train_job(
        TrainingJob.from_dict(fields | {"unit": "char", "ngram": 3, "out": str(tmp_path / "runs")}), note=notes.append
    )
    assert json.loads((tmp_path / "runs" / "base" / "linear.json").read_text())["ngram"] == 3
    assert unordered("char", 5) is None


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
