"""What the workers of an engine do in an attack and in an audit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from adaptdel.attacks.auditor import Auditor, Claim, ClaimAudit
from adaptdel.attacks.outcomes import ERROR, AttackRecord
from adaptdel.attacks.recipes import AttackPlan, InputAttack
from adaptdel.attacks.vocabulary import Vocabulary
from adaptdel.engines.engine import Task, Work, WorkerError
from adaptdel.hyperparameters import AttackSettings
from adaptdel.runs.records import label_text
from adaptdel.runs.workers import row_numbers

ALONE = 10**6  # characters: an item of this size is sent alone


@dataclass(frozen=True)
class AttackTask(Task):
    """Attack inputs; results are the records of a run.

    Attributes:
        plan: the attack, which workers load.
        attack: what to attack with in this process; None in workers.
    """

    kept: ClassVar[str] = "everything attacked so far is kept"

    plan: AttackPlan
    attack: InputAttack | None = None

    def load(self) -> Work:
        """A function from inputs to records."""
        return _each(self.attack or self.plan())

    def failed(self, item: Any, reason: str) -> AttackRecord:
        """A record that states the problem."""
        problem = {"outcome": ERROR, "problem": reason}
        return {"id": item.id, "row": item.row, "truth": label_text(item.label), **problem}

    def size(self, item: Any) -> int:
        """Every input is sent alone: an attack takes seconds to hours, and its record is stored when it ends."""
        return ALONE

    def describe(self, items: Sequence[Any]) -> str:
        """The rows in the data."""
        return row_numbers(item.row for item in items)

    def paths(self) -> tuple[Path, ...]:
        """The model, unless it is behind a server, and the parts of a recipe that are files or folders."""
        return self.plan.paths()

    def at(self, copies: Mapping[Path, Path]) -> AttackTask:
        """The same attack with copies of the model and the parts."""
        return replace(self, plan=self.plan.at(copies))


@dataclass(frozen=True)
class AuditTask(Task):
    """Audit claims; results are their audits.

    Attributes:
        vocabulary: the words that are written.
        settings: limits of the attack.
    """

    kept: ClassVar[str] = "an audit keeps no results"

    vocabulary: Vocabulary
    settings: AttackSettings

    def load(self) -> Work:
        """A function from claims to audits."""
        assert self.source is not None
        return _each(Auditor(self.source.load().certifier(), self.vocabulary, self.settings).check)

    def failed(self, item: Any, reason: str) -> ClaimAudit:
        """An audit needs every certificate that was drawn."""
        raise WorkerError(f"{item.name}: {reason}: {self.try_again} with fewer workers")

    def size(self, item: Any) -> int:
        """Every claim is sent alone: it takes seconds."""
        return ALONE

    def describe(self, items: Sequence[Claim]) -> str:
        """The names of the inputs."""
        return ", ".join(claim.name for claim in items)


def _each(function: Callable[[Any], Any]) -> Work:
    def work(items: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        for number, item in items:
            yield number, function(item)

    return work
