"""No file outside four files names a kind of evidence or model, and a new kind needs one file."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import adaptdel
from adaptdel.certification.certifier import Oracle
from adaptdel.certification.evidence import EVIDENCE, Evidence, Explanation, Plan
from adaptdel.classifiers.base import Prepared, Request
from adaptdel.classifiers.linear import LinearClassifier
from adaptdel.core.noise import NoNoise
from adaptdel.core.threat import Threat
from adaptdel.models.estimator import TextEstimator
from adaptdel.models.model_files import MODELS
from adaptdel.serve import ModelToServe, Service
from adaptdel.text.units import Tokens, Unit, check_unit
from tests.run_files import run, write_rows
from tests.serve.serving import call

SOURCE = Path(adaptdel.__file__).parent
MODULES = ("certification.votes", "certification.scores", "models.smoothed", "models.additive")
CLASSES = {"VotesPlan", "ScoresPlan", "Votes", "Scores", "SmoothedClassifier", "AdditiveClassifier"}
ALLOWED = ("certification/", "models/", "training/", "cli/train.py", "__init__.py")
OUTSIDE = sorted(path for path in SOURCE.rglob("*.py") if not str(path.relative_to(SOURCE)).startswith(ALLOWED))


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_kind_is_named(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if name.removeprefix("adaptdel.") in MODULES}
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not named & CLASSES
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and "kind" in ast.unparse(node):
            words = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
            assert not words & {*EVIDENCE, *MODELS}, ast.unparse(node)


@dataclass(frozen=True, kw_only=True)
class AlwaysPlan(Plan):
    kind: ClassVar[str] = "always"

    def predictions(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Always(Evidence):
    """Evidence that always says 3."""

    kind: ClassVar[str] = "always"
    plan: ClassVar[type[Plan]] = AlwaysPlan
    columns: ClassVar[Mapping[str, str]] = {"lucky": "int64"}

    answer: int
    length: int
    lucky: int = 3

    def predicted(self, plan: Any) -> int:
        return self.answer

    def class_scores(self, plan: Any) -> list[float]:
        return [float(number == self.answer) for number in range(2)]

    def radius(self, plan: Any, threat: Threat) -> int:
        return self.lucky

    def frontier(self, plan: Any) -> list[tuple[int, int, int]]:
        return [(0, 0, 3)]

    def character_radius(self, plan: Any, unit: Mapping[str, Any] | None) -> int | None:
        return 3

    @classmethod
    def from_row(cls, row: Mapping[str, Any], plan: Any) -> Always:
        return cls(row["answer"], row["length"], row["lucky"])

    def check_shape(self, classes: int) -> None:
        assert self.answer < classes

    def check(self, plan: Any, certificate: Any, *, work: int | None = None) -> list[str]:
        return [] if self.lucky == 3 else ["only 3 is lucky"]

    def explain(self, certificate: Any, text: Any = None) -> Explanation:
        return Explanation(["Three is a lucky number."])


class AlwaysOracle(Oracle):
    def __init__(self, base: LinearClassifier) -> None:
        self.base, self.classes = base, base.classes_ or []

    def fingerprint(self) -> str:
        return self.base.fingerprint()

    def prepare(self, inputs: Sequence[tuple[str, Tokens]], unit: Unit, plan: Any) -> list[Prepared]:
        return [self.base.prepare(name, tokens, unit) for name, tokens in inputs]

    def observe(self, prepared: Prepared, plan: Any) -> Always:
        [answers] = self.base.votes([Request(prepared, np.ones((1, len(prepared.tokens)), dtype=np.bool_))])
        return Always(int(answers[0]), len(prepared.tokens))


class AlwaysThree(TextEstimator):
    kind: ClassVar[str] = "always"
    run_options: ClassVar[tuple[str, ...]] = ("ops",)

    def __init__(self, base: Any = None, unit: Any = "word", ops: Any = "edit", progress: Any = False) -> None:
        self.base, self.unit, self.ops, self.progress = base, unit, ops, progress
        self.base_ = base

    @property
    def plan(self) -> AlwaysPlan:
        return AlwaysPlan(threat=Threat(self.ops))

    def oracle(self) -> AlwaysOracle:
        return AlwaysOracle(self.base_classifier())

    def base_classifier(self) -> LinearClassifier:
        base: LinearClassifier = self.base_
        return base

    @classmethod
    def from_parts(cls, base: Any, unit: Any, plan: Any, parameters: Mapping[str, Any]) -> AlwaysThree:
        return cls(base, unit, plan.ops)


def test_a_new_kind_goes_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EVIDENCE.entries, "always", Always)  # as EVIDENCE.add and MODELS.add register them
    monkeypatch.setitem(MODELS.entries, "always", AlwaysThree)
    texts = [f"{word} film {number}" for number in range(20) for word in ("good", "bad")]
    labels = ["pos", "neg"] * 20
    base = LinearClassifier().fit(
        [tuple(text.split()) for text in texts], labels, noise=NoNoise(), unit=check_unit("word"), seed=0
    )
    AlwaysThree(base).save(tmp_path / "model")
    rows = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    data = write_rows(tmp_path / "data.jsonl", rows)
    model, out = tmp_path / "model", tmp_path / "run"
    assert run("certify", model, "--data", data, "--out", out) == 0
    assert run("verify", out) == 0
    assert run("status", out) == 0
    assert run("report", out, "--out", tmp_path / "report") == 0
    assert run("recertify", out, "--threat", "del", "--out", tmp_path / "again") == 0
    assert run("audit", out, "--set", "inputs=3") == 1
    assert "radius 3 is claimed, and a text at edit distance" in capsys.readouterr().out  # luck proves nothing
    assert "Three is a lucky number." in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["plan"]["kind"] == "always"
    assert manifest["totals"]["mean_radius"] == 3
    served = Service([ModelToServe("lucky", AlwaysThree.load(model))])
    [answer] = call(served, lambda client: client.certify("good film"))
    assert answer.result["radius"] == 3
