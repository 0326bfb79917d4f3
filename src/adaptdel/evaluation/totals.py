"""Sums over the records of a run: what is shown while it goes on, and what its manifest says in the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from adaptdel.evaluation.schema import Record


@dataclass
class Totals:
    """Sums over records. Averages count 0 for inputs that are wrong or not settled, as the paper does."""

    inputs: int = 0
    problems: int = 0
    labelled: int = 0
    correct: int = 0
    abstained: int = 0
    radius: int = 0
    calls: int = 0
    seconds: float = 0.0

    def add(self, record: Record) -> None:
        """Count one record."""
        self.inputs += 1
        self.seconds += record.get("seconds") or 0.0
        if record["problem"] is not None:
            self.problems += 1
            return
        self.labelled += record["correct"] is not None
        self.abstained += record["abstained"]
        self.calls += record["calls"]
        self.correct += bool(record["correct"]) and not record["abstained"]
        if record["correct"] is not False:
            self.radius += max(record["radius"], 0)

    @property
    def certified(self) -> int:
        """How many have a certificate."""
        return self.inputs - self.problems

    @property
    def accuracy(self) -> float | None:
        """The share of right and settled answers among labelled inputs."""
        return self.correct / self.labelled if self.labelled else None

    @property
    def mean_radius(self) -> float | None:
        """The mean radius, with 0 for wrong or unsettled answers."""
        return self.radius / self.certified if self.certified else None

    def to_dict(self) -> dict[str, Any]:
        """The sums and the averages, but for the time."""
        sums = {name: value for name, value in asdict(self).items() if name not in ("seconds", "radius")}
        return {**sums, "accuracy": self.accuracy, "mean_radius": self.mean_radius}
