"""Own noises, rates and bounds: the examples are sound, and a stranger's package works in every command."""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaptdel as ad
from adaptdel.certification.verify import verify
from adaptdel.core.bounds import BOUNDS, lower, upper
from adaptdel.core.general import longest_common_subsequence
from adaptdel.core.noise import NOISES
from adaptdel.core.threat import EVERY_SET
from tests.exact import TableRate, neighbours, probabilities, random_classifier, random_rate, round_down
from tests.run_files import run

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", autouse=True)
def examples_on_path() -> Iterator[None]:
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))
    for registry in (NOISES, BOUNDS):  # workers of other tests could not import them
        for name in ("window", "repeats", "total_variation"):
            registry.entries.pop(name, None)
    for path in EXAMPLES.glob("own_*.py"):
        sys.modules.pop(path.stem, None)


def window_shares(word: tuple[int, ...], width: int, classify: Callable[[tuple[int, ...]], int]) -> list[Fraction]:
    """The exact probability of both classes over all windows of a word."""
    windows = [word[start : start + width] for start in range(max(len(word) - width, 0) + 1)]
    answers = [classify(window) for window in windows]
    return [Fraction(answers.count(number), len(answers)) for number in (0, 1)]


def test_the_noise_of_windows_certifies_long_texts_in_little_time() -> None:
    """At radius 374 of 3,000 words the triples of edits are 9 million; the pairs that matter are 749."""
    window = importlib.import_module("own_noise").Window
    assert ad.certified_radius(1.0, length=3000, noise=window(4)) == 374
    assert sum(len(part[0]) for part in window(4).ball(3000, 374, ad.Threat())) == 749


@pytest.mark.parametrize("seed", range(40))
def test_the_noise_of_windows_is_certified_soundly(seed: int) -> None:
    """Every neighbour of small words, in exact arithmetic; ball arithmetic agrees."""
    window = importlib.import_module("own_noise").Window
    rng = random.Random(seed)
    width, classify = rng.randrange(1, 4), random_classifier(rng, 2)
    word = tuple(rng.randrange(2) for _ in range(rng.randrange(7)))
    noise, shares = window(width), window_shares(word, width, classify)
    answer = int(shares[1] > shares[0])
    for ops in EVERY_SET:
        for p1 in (round_down(shares[answer]), 1.0):
            shape = {"length": len(word), "noise": noise, "ops": ops}
            assert ad.certified_radius(p1, **shape) <= ad.rigorous_radius(p1, **shape)
        radius = ad.certified_radius(round_down(shares[answer]), length=len(word), noise=noise, ops=ops)
        for other, _ in neighbours(word, range(3), ops, min(radius, 3), 400) if radius > 0 else ():
            assert window_shares(other, width, classify)[answer] > Fraction(1, 2)


@pytest.mark.parametrize("seed", range(60))
def test_a_bound_of_ones_own_is_sound_and_below_the_tight_one(seed: int) -> None:
    importlib.import_module("own_bound")
    rng = random.Random(seed)
    rate, classify = random_rate(rng), random_classifier(rng, 2)
    word = tuple(rng.randrange(2) for _ in range(rng.randrange(5)))
    shares = probabilities(word, classify, rate, 2)
    noise = ad.Deletion(rate)
    for other, _ in neighbours(word, range(2), ("del", "ins", "sub"), 2, 60):
        common = longest_common_subsequence(word, other)
        overlap = noise.overlap(len(word), np.array([len(other)]), np.array([common]))
        truth = probabilities(other, classify, rate, 2)
        for number in (0, 1):
            p = np.array([round_down(shares[number])])
            low, tight = (float(lower(p, overlap, bound)[0]) for bound in ("total_variation", "tight"))
            assert low <= tight + 1e-9
            assert Fraction(low) <= truth[number]
            assert Fraction(float(upper(p, overlap, "total_variation")[0])) >= truth[number] - Fraction(1, 10**15)


@pytest.mark.parametrize("seed", range(20))
def test_a_rate_that_sees_the_tokens_is_certified_soundly(seed: int) -> None:
    """Model, sampler and certificate use the same rate; every neighbour of the vocabulary, in exact arithmetic."""
    repeats = importlib.import_module("own_rate").RepeatsDeletion
    rng = random.Random(seed)
    noise = repeats(vocabulary=("a", "b"), max_radius=2, usual=rng.random() / 3, repeated=rng.random() / 2)
    marks = random_classifier(rng, 2)

    def truth(text: str) -> list[Fraction]:
        threshold = round(noise.given(tuple(text)).share_removed(len(text)) * 2**32)
        numbers = tuple(map("ab".index, text))
        return probabilities(numbers, marks, TableRate((threshold,)), 2)

    text = "".join(rng.choices("ab", k=rng.randrange(1, 5)))
    model = ad.SmoothedClassifier(
        lambda copies: [marks(tuple(map("ab".index, copy))) for copy in copies], noise, classes=[0, 1], unit="char"
    )
    [certificate] = model.certify([text])
    shares = truth(text)
    assert certificate.derived()["p1"] == round_down(max(shares))  # enumerated
    assert verify(json.loads(certificate.to_json())) == []
    for ops in EVERY_SET:
        radius = certificate.radius_for(ops)
        numbers = tuple("ab".index(token) for token in text)
        for other, _ in neighbours(numbers, range(2), ops, radius, 10**6) if radius > 0 else ():
            assert truth("".join("ab"[number] for number in other))[certificate.answer] > Fraction(1, 2)


def test_what_a_noise_does_not_define_is_refused_not_replaced() -> None:
    noise = importlib.import_module("own_noise").Window(3)
    with pytest.raises(ValueError, match="frontier"):
        ad.certified_frontier(1.0, length=9, noise=noise)
    with pytest.raises(TypeError, match="ball"):
        type("Seeing", (ad.Deletion,), {"given": lambda self, tokens: self})


STRANGER = "stranger_windows"


def forget() -> None:
    NOISES.entries.pop("stranger", None)
    sys.modules.pop(STRANGER, None)


def write_data(path: Path) -> Path:
    rng = random.Random(0)
    words = {"spam": ["cheap", "pills", "buy", "offer"], "ham": ["lunch", "friday", "meeting", "notes"]}
    rows = [
        {"label": label, "text": " ".join(rng.choices([*words[label], "the", "at"], k=rng.randrange(14, 30)))}
        for label in ("spam", "ham") * 40
    ]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.mark.parametrize("way", ["plug-in", "--import"])
def test_a_strangers_noise_works_in_every_command(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_data(tmp_path / "data.jsonl")
    source = (EXAMPLES / "own_noise.py").read_text(encoding="utf-8")
    (tmp_path / f"{STRANGER}.py").write_text(source.replace('"window"', '"stranger"'), encoding="utf-8")
    given = []
    if way == "plug-in":  # as pip would install it beside ours: a module and its entry point
        metadata = tmp_path / f"{STRANGER}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {STRANGER}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[adaptdel.plugins]\nwindows = {STRANGER}\n")
        monkeypatch.syspath_prepend(tmp_path)
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        given = ["--import", STRANGER]
    model, calibrated, folder = (tmp_path / name for name in ("model", "calibrated", "run"))
    settings = 'noise={"kind": "stranger", "width": 5}'
    commands: list[list[Any]] = [
        ["train", "--data", data, "--method", "own", "--set", settings, "--out", model],
        ["calibrate", model, "--data", data, "--out", calibrated, "--set", "examples=40", "--set", "min_count=10"],
        ["certify", calibrated, "--data", data, "--out", folder, "--limit", "6", "--workers", "1"],
        ["report", folder, "--out", tmp_path / "report"],
        ["verify", folder],
        ["recertify", folder, "--alpha", "0.01", "--out", tmp_path / "again"],
    ]
    for command in commands:
        forget()
        assert run(*command, *given) == 0, (command, capsys.readouterr().err)
    assert "6 of 6 certificates hold" in capsys.readouterr().out
    assert ad.read_run(folder).manifest.plan.to_dict()["noise"]["kind"] == "stranger"
    forget()
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    assert run("verify", folder) == 2
    error = capsys.readouterr().err
    assert "the noise 'stranger' is not registered" in error
    assert "--import" in error
    assert not any(word in error for word in ("damaged", "not the manifest", "copy"))
    assert run("certify", model, "--data", data, "--out", tmp_path / "other") == 2
    assert "the noise 'stranger' is not registered" in capsys.readouterr().err
    forget()


def test_a_rate_of_content_and_a_bound_of_ones_own_go_from_training_to_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--set", 'noise={"kind": "repeats", "vocabulary": ["a", "b", "c"]}']
    rng = random.Random(0)
    texts = ["".join(rng.choices("aaab" if place % 2 else "bccc", k=rng.randrange(12, 15))) for place in range(60)]
    data = tmp_path / "data.jsonl"
    rows = [json.dumps({"text": text, "label": place % 2}) for place, text in enumerate(texts)]
    data.write_text("\n".join(rows), encoding="utf-8")
    modules = ["--import", "own_rate", "--import", "own_bound"]
    model, folder = tmp_path / "model", tmp_path / "run"
    assert run("train", "--data", data, "--method", "own", "--unit", "char", *given, "--out", model, *modules) == 0
    bound = ["--bound", "total_variation", "--votes", "100,1000"]
    assert run("certify", model, "--data", data, "--out", folder, "--limit", "5", *bound, *modules) == 0
    assert run("report", folder, "--out", tmp_path / "report", *modules) == 0
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "total_variation (registered bound, not verified by adaptdel)" in page
    capsys.readouterr()
    assert run("verify", folder, *modules) == 0
    out, err = capsys.readouterr()
    assert "5 of 5 certificates hold" in out
    assert "the registered noise 'repeats'" in err
    assert "registered bound, not verified by adaptdel" in err
    records = list(ad.read_run(folder).records())
    assert [json.loads(record["tokens"]) for record in records] == [list(text) for text in texts[:5]]
    entry = BOUNDS.entries.pop("total_variation")
    sys.modules.pop("own_bound")
    assert run("verify", folder) == 2
    assert "the bound 'total_variation' is not registered" in capsys.readouterr().err
    BOUNDS.entries["total_variation"] = entry
