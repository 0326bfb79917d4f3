"""A served model under attack: the recipes of TextAttack over HTTP, as a stranger could run them.

The server decides the noise. Its votes on a text stay the same as long as it runs, unless it draws a seed for every
request; the votes that select an answer are independent of those that certify it, which check an attacked text.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adaptdel.attacks.recipes import ADAPTIVE, Attacker, AttackPlan, CheckedAnswer, check_word_unit
from adaptdel.attacks.target import Spent, TimeLimitReached
from adaptdel.attacks.textattack_recipes import TextAttackAttacker, decided_at_one_half
from adaptdel.core.checks import FloatArray
from adaptdel.core.threat import Threat
from adaptdel.hyperparameters import AttackSettings
from adaptdel.serve.client import CertifiedText, Client, Prediction, ServeError
from adaptdel.text.units import check_unit

SPARE_BYTES = 4096  # of the body of a request, for all but the texts
LONGEST_CHARACTER = 12  # bytes of a character in JSON


@contextmanager
def _refused(url: str) -> Iterator[None]:
    """What a server refuses, in one sentence."""
    try:
        yield
    except ServeError as error:
        raise ValueError(f"{url}: the attack cannot go on: {error}: run the same command again") from None


@dataclass(frozen=True)
class ServedSource:
    """A model of a running server.

    Attributes:
        url: the address of the server.
        model: the name of the model; None for the server's first one.
        token: the token of the server, if it has one.
        ops: the operations that are certified; None for the model's.
    """

    url: str
    model: str | None = None
    token: str | None = field(default=None, repr=False)
    ops: str | None = None

    def load(self, settings: AttackSettings) -> ServedTarget:
        """Connect to the server."""
        return ServedTarget(self, settings)


class ServedTarget:
    """A served model: the interface `adaptdel.attacks.recipes.AttackedModel`."""

    def __init__(self, source: ServedSource, settings: AttackSettings) -> None:
        self.source, self.settings = source, settings
        self.client = Client(source.url, token=source.token, model=source.model)
        weakref.finalize(self, self.client.close)
        with _refused(source.url):
            offered = self.client.models()
            models = {model["name"]: model for model in offered["models"]}
            name = source.model or next(iter(models))
            if name not in models:
                raise ValueError(f"{source.url}: there is no model {name!r}, only {', '.join(map(repr, models))}")
            self.limits, self.info = offered["limits"], models[name]
            self.unit = check_unit(self.info["unit"])
            check_word_unit(self.unit)
            self.options: dict[str, Any] = {}
            if source.ops is not None:
                self.options["ops"] = source.ops if source.ops == "edit" else list(Threat(source.ops).ops)
            example = self._certify("a", {})  # its certificate describes the noise
        if example.certificate is None:
            raise ValueError(f"{source.url}: gave no certificate before its deadline: start it with a longer one")
        self.noise, self._ops = example.certificate.noise, example.certificate.ops

    @property
    def ops(self) -> tuple[str, ...]:
        """The operations that are certified."""
        return tuple(self._ops)

    def description(self) -> dict[str, Any]:
        """Fields of the manifest."""
        info = self.info
        return {
            "model": {"path": f"{self.source.url}/{info['name']}", "base": info["kind"], "served": True},
            "method": info["method"],
            "model_hash": info["fingerprint"],
            "noise": self.noise.to_dict(),
            "unit": self.unit.to_dict(),
            "classes": list(info["classes"]),
            "ops": list(self.ops),
            "threshold": info["threshold"],
            "alpha": info["alpha"],
        }

    def attacker(self, plan: AttackPlan) -> Attacker:
        """A recipe of TextAttack; the adaptive attack and fresh votes need the model itself."""
        if plan.recipe == ADAPTIVE:
            raise ValueError(
                f"{self.source.url}: the adaptive attack needs the scores of the base model, which a server does not "
                "give: choose a recipe of TextAttack by --recipe, or give the folder of the model"
            )
        if plan.fresh:
            raise ValueError(
                f"{self.source.url}: the server decides whether votes are drawn anew: leave --fresh-votes out, or give "
                "the folder of the model"
            )
        return TextAttackAttacker(ServedShares(self, plan.settings), plan.recipe, plan.settings, plan.parts)

    def certified(self, text: str, name: str) -> tuple[Any, int]:
        """The label and the certified radius of a text."""
        with _refused(f"{self.source.url}, {name}"):
            answer = self._certify(text, {})
        if answer.label is None:
            raise ValueError(f"{self.source.url}, {name}: no vote before the deadline of the server")
        return answer.label, answer.radius

    def check(self, text: str, label: Any) -> CheckedAnswer:
        """Whether a certificate at the level of a check settles that the answer is another than a label."""
        votes = {"estimate": min(self.settings.verify_votes, int(self.limits["votes"]))}
        with _refused(self.source.url):
            answer = self._certify(text, {"alpha": self.settings.level, "votes": votes})
        return CheckedAnswer(None if answer.abstained else answer.label != label, answer.label)

    def _certify(self, text: str, options: dict[str, Any]) -> CertifiedText:
        return self.client.certify(text, **self.options, **options)


class ServedShares:
    """The vote shares of texts, asked of a server; what a recipe queries."""

    def __init__(self, target: ServedTarget, settings: AttackSettings) -> None:
        self.target, self.settings = target, settings
        self.names = [str(label) for label in target.info["classes"]]
        self.spent = Spent(started=time.perf_counter())

    def begin(self) -> None:
        """Start counting queries, votes and time for a new input."""
        self.spent = Spent(started=time.perf_counter())

    def __call__(self, texts: Sequence[str]) -> FloatArray:
        """The shares, shape (texts, classes); the server may take fewer votes than it is asked for if they agree."""
        rows: list[list[float]] = []
        for part in self._parts(texts):
            if self.spent.seconds > self.settings.seconds:
                raise TimeLimitReached
            with _refused(self.target.source.url):
                answers: list[Prediction] = self.target.client.predict(part, votes={"select": self.settings.votes})
            self.spent.queries += len(part)
            self.spent.votes += sum(answer.calls for answer in answers)
            rows += [[answer.scores[name] for name in self.names] for answer in answers]
        return decided_at_one_half(np.array(rows).reshape(len(texts), -1), self.target.info["threshold"])

    def _parts(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """As many texts as a request may hold, in number and in bytes."""
        most, most_bytes = int(self.target.limits["texts"]), int(self.target.limits["body_bytes"]) - SPARE_BYTES
        part: list[str] = []
        size = 0
        for text in texts:
            length = len(text) if text.isascii() else LONGEST_CHARACTER * len(text)
            if part and (len(part) == most or size + 2 * length > most_bytes):  # an escaped character takes two bytes
                yield part
                part, size = [], 0
            part.append(text)
            size += 2 * length
        if part:
            yield part
