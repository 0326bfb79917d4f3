"""Attack recipes by name: our adaptive attack, and those of TextAttack, which need the extra "attack"."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Protocol

from adaptdel.attacks.adaptive import SKIPPED, SUCCESS, AdaptiveAttack
from adaptdel.attacks.edits import edit_distance
from adaptdel.attacks.outcomes import AttackRecord
from adaptdel.attacks.target import Target
from adaptdel.attacks.vocabulary import Vocabulary, learn_vocabulary
from adaptdel.certification.certifier import Certifier, Input
from adaptdel.classifiers.base import registered_modules
from adaptdel.core.checks import check_choice
from adaptdel.core.noise import registered_noise_modules
from adaptdel.engines.engine import ModelSource
from adaptdel.hyperparameters import ATTACK, AttackSettings
from adaptdel.models.smoothed import SmoothedClassifier
from adaptdel.runs.inputs import LabelMap, RunInput, Source
from adaptdel.runs.records import label_text
from adaptdel.text.data import Row
from adaptdel.text.units import Tokens, Unit, check_unit

ADAPTIVE = "adaptive"
TEXTATTACK = ("clare", "bae-i", "bert-attack", "deepwordbug", "textfooler")
RECIPES = (ADAPTIVE, *TEXTATTACK)
TEXT_UNITS = ("word", "char")
USED_PARTS = {
    ADAPTIVE: (),
    "clare": ("masked_lm", "masked_lm_context", "sentence_encoder", "tagger", "stop_words"),
    "bae-i": ("masked_lm", "masked_lm_context", "sentence_encoder", "tagger", "stop_words"),
    "bert-attack": ("masked_lm", "masked_lm_context", "sentence_encoder", "stop_words"),
    "deepwordbug": ("stop_words",),
    "textfooler": ("word_vectors", "sentence_encoder", "tagger", "stop_words"),
}


class Attacker(Protocol):
    """An attack on a single input."""

    def __call__(self, text: str, tokens: Tokens, label: int) -> AttackRecord:
        """Attack a text whose right answer is the class ``label``.

        Returns the fields outcome, text, words_changed, queries and votes of the record, and verified if the attack
        itself has confirmed the change.
        """


class AdaptiveAttacker:
    """The adaptive attack as a recipe."""

    def __init__(self, attack: AdaptiveAttack, unit: Unit) -> None:
        self.attack, self.unit = attack, unit

    def __call__(self, text: str, tokens: Tokens, label: int) -> AttackRecord:
        """Attack unless the smoothed answer is provably another one already."""
        target = self.attack.target
        target.begin()
        if target.verify(tokens, label, phase="clean").changed:
            spent = target.spent
            return {"outcome": SKIPPED, "text": None, "words_changed": None, "queries": 1, "votes": spent.votes}
        result = self.attack(tokens, label)
        return {
            "outcome": result.outcome,
            "text": None if result.tokens is None else self.unit.join(result.tokens),
            "words_changed": result.distance,
            "queries": result.queries,
            "votes": result.votes,
            "verified": True if result.tokens is not None else None,  # by fresh votes, within the attack
        }


@dataclass(frozen=True)
class CheckedAnswer:
    """Whether the smoothed answer to a text is another than the label, as `FreshVotes.changed`; and the answer."""

    changed: bool | None
    answer: Any


class AttackedModel(Protocol):
    """A smoothed classifier under attack: in this process, or behind a server."""

    unit: Unit

    def description(self) -> dict[str, Any]:
        """What the manifest of a run says about the model: model, method, model_hash, noise, classes, ops, ..."""

    def attacker(self, plan: AttackPlan) -> Attacker:
        """The recipe of a plan against the model."""

    def certified(self, text: str, name: str) -> tuple[Any, int]:
        """The label and the certified radius of a text, which messages call ``name``."""

    def check(self, text: str, label: Any) -> CheckedAnswer:
        """Whether fresh votes settle that the answer to an attacked text is another than a label."""

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations that are certified."""


class AttackedSource(Protocol):
    """What a worker process loads a model from."""

    def load(self, settings: AttackSettings) -> AttackedModel:
        """Load the model, or connect to it."""


class LocalModel:
    """A model in this process."""

    def __init__(self, model: SmoothedClassifier, folder: Path, settings: AttackSettings) -> None:
        check_text_model(model)
        self.model, self.folder = model, folder
        self.unit = check_unit(model.unit)
        if model.base_classifier().classes_ is None:
            raise ValueError(f"{folder}: an attack needs a model whose classes are known")
        self.certifier = model.certifier()
        self.target = Target(self.certifier, replace(settings, level=min(settings.level, 1e-3)))

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations that are certified."""
        return tuple(self.certifier.rule.threat.ops)

    def description(self) -> dict[str, Any]:
        """Fields of the manifest."""
        model = self.model
        rule, base = model.rule(), model.base_classifier()
        training = getattr(model, "training_", None) or {}
        calibrated = hasattr(model, "calibration_")
        return {
            "model": {"path": str(self.folder), "base": repr(base), "calibrated": calibrated},
            "method": training.get("method"),
            "model_hash": base.fingerprint(),
            "noise": rule.noise.to_dict(),
            "unit": self.unit.to_dict(),
            "classes": list(base.classes_ or []),
            "ops": list(rule.ops),
            "threshold": rule.threshold,
            "alpha": model.alpha,
        }

    def attacker(self, plan: AttackPlan) -> Attacker:
        """The recipe of a plan against the model."""
        if plan.recipe == ADAPTIVE:
            words = plan.vocabulary
            if not isinstance(words, Vocabulary):
                words = learn_vocabulary(self.certifier, labelled_tokens(self.certifier, words))
            return AdaptiveAttacker(AdaptiveAttack(Target(self.certifier, plan.settings), words), self.unit)
        from adaptdel.attacks.textattack_recipes import TextAttackAttacker, VoteShares

        check_word_unit(self.unit)
        shares = VoteShares(self.certifier, plan.settings, fresh=plan.fresh)
        return TextAttackAttacker(shares, plan.recipe, plan.settings, plan.parts, fresh=plan.fresh, shared=plan.shared)

    def certified(self, text: str, name: str) -> tuple[Any, int]:
        """The label and the certified radius."""
        (result,) = list(self.certifier([Input(text, name)]))
        if result.certificate is None:
            raise ValueError(f"{name}: {result.failure}")
        return result.certificate.label, result.certificate.radius

    def check(self, text: str, label: Any) -> CheckedAnswer:
        """Whether fresh votes, of a stream of their own, settle that the answer is another than a label."""
        classes = list(self.certifier.base.classes_ or [])
        self.target.begin()
        votes = self.target.verify(self.unit.split(text), classes.index(label), phase="confirm")
        return CheckedAnswer(votes.changed, classes[self.certifier.rule.predicted_class(votes.shares)])


@dataclass(frozen=True)
class LocalSource:
    """The folder of a model.

    Attributes:
        folder: what `SmoothedClassifier.save` wrote.
        ops: replaces the operations that the model certifies and that are attacked.
        fingerprint: of the base classifier; another one is an error.
        modules: to import first.
    """

    folder: Path
    ops: str | None = None
    fingerprint: str | None = None
    modules: tuple[str, ...] = ()

    def load(self, settings: AttackSettings) -> LocalModel:
        """Load the model."""
        if not (self.folder / "adaptdel.json").exists():
            raise ValueError(f"{self.folder}: not the folder of a model: adaptdel train writes one")
        changes = {} if self.ops is None else {"ops": self.ops}
        source = ModelSource(self.folder, changes, self.fingerprint, self.modules)
        return LocalModel(source.load(), self.folder, settings)


@dataclass(frozen=True)
class AttackPlan:
    """What a worker process needs to attack inputs; called, it loads the model and returns the attack on an input.

    Attributes:
        model: where the model is loaded from.
        recipe: one of `RECIPES`.
        settings: limits of the attack.
        vocabulary: the words that the adaptive attack writes, or the labelled texts that they are learned from.
        parts: folders or names of the parts of a recipe of TextAttack.
        fresh: whether a text that is queried again gets fresh votes; TextAttack otherwise keeps the first answer.
        shared: loaded parts of attacks in this process, which this one shares.
    """

    model: AttackedSource
    recipe: str
    settings: AttackSettings = ATTACK
    vocabulary: Source | Vocabulary | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    fresh: bool = False
    shared: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_choice("recipe", self.recipe, RECIPES)

    def __call__(self) -> InputAttack:
        """Load the model and everything the recipe needs."""
        return InputAttack(self.model.load(self.settings), self)

    def paths(self) -> tuple[Path, ...]:
        """The folder of the model, unless it is behind a server, and the parts that are files or folders here."""
        given = (Path(value) for part, value in sorted(self.parts.items()) if part != "masked_lm_context")
        parts = (path for path in given if path.exists())
        return (*([self.model.folder] if isinstance(self.model, LocalSource) else []), *parts)

    def at(self, copies: Mapping[Path, Path]) -> AttackPlan:
        """The same plan for copies of its `paths` in other places."""
        model = self.model
        if isinstance(model, LocalSource):
            model = replace(model, folder=copies[model.folder])
        parts = {name: str(copies.get(Path(value), value)) for name, value in self.parts.items()}
        return replace(self, model=model, parts=parts)


class InputAttack:
    """Attack one input after the other, with a certificate for each."""

    def __init__(self, model: AttackedModel, plan: AttackPlan) -> None:
        self.plan, self.model = plan, model
        self.classes = list(model.description()["classes"])
        self.attacker = model.attacker(plan)

    def plan_for_workers(self) -> AttackPlan:
        """The plan with the words and the fingerprint of the model, so that workers read no data."""
        words = self.attacker.attack.vocabulary if isinstance(self.attacker, AdaptiveAttacker) else None
        source = self.plan.model
        if isinstance(source, LocalSource):
            modules = tuple(sorted({*registered_modules(), *registered_noise_modules()}))
            source = replace(source, fingerprint=self.model.description()["model_hash"], modules=modules)
        return replace(self.plan, model=source, vocabulary=words)

    def __call__(self, run_input: RunInput) -> AttackRecord:
        """The record of an input: the outcome, the certificate, the attacked text and its true edit distance."""
        label, radius = self.model.certified(run_input.text, f"row {run_input.row}")
        tokens = self.model.unit.split(run_input.text)
        started = time.perf_counter()
        record = self.attacker(run_input.text, tokens, self.classes.index(run_input.label))
        record |= {
            "id": run_input.id,
            "row": run_input.row,
            "truth": label_text(run_input.label),
            "answer": label_text(label),
            "length": len(tokens),
            "radius": radius if label == run_input.label else -1,
            "seconds": time.perf_counter() - started,
            "distance": None,
            "verified": record.get("verified"),
            "answer_after": None,
            "covered": None,
        }
        if record["outcome"] == SUCCESS:
            record |= self._checked(tokens, record, run_input.label)
        return record

    def _checked(self, tokens: Tokens, record: AttackRecord, label: Any) -> AttackRecord:
        """The true distance of an attacked text, and whether fresh votes confirm that its answer is another one."""
        attacked = self.model.unit.split(record["text"])
        distance = edit_distance(tokens, attacked, self.model.ops)
        covered = distance != inf
        checked = self.model.check(record["text"], label)
        return {
            "distance": int(distance if covered else edit_distance(tokens, attacked)),
            "verified": record["verified"] or checked.changed is True,
            "answer_after": label_text(checked.answer),
            "covered": covered,
        }


def check_text_model(model: SmoothedClassifier) -> None:
    """Raise unless a model classifies texts, in words or characters, among known classes."""
    unit = check_unit(model.unit)
    if unit.kind not in TEXT_UNITS:
        raise ValueError(
            f"the model must be a classifier of texts to be attacked, got one whose unit is {unit.kind!r}: attacks "
            "write words"
        )


def check_word_unit(unit: Unit) -> None:
    """Raise unless the tokens of a model are words, which the recipes of TextAttack edit."""
    if unit.kind != "word":
        raise ValueError(f"recipes of TextAttack edit words, got a model whose unit is {unit.kind!r}")


def labelled_tokens(certifier: Certifier, source: Source | None) -> Iterator[tuple[Tokens, Any]]:
    """The tokens and the labels of a file, for the vocabulary; a label that the model does not know is None."""
    if source is None:
        raise ValueError("the adaptive attack needs texts for its vocabulary")
    label_map = LabelMap(certifier.base.classes_ or [])
    for row in source.rows():
        if isinstance(row, Row):
            try:
                label = None if row.label is None else label_map(row.label)
            except ValueError:
                label = None
            yield certifier.unit.split(row.text), label
