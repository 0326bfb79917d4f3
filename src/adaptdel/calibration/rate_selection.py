"""The result of a calibration by the objective "balanced", in plain values and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from adaptdel.calibration.candidates import Comparison
from adaptdel.classifiers.base import BaseClassifier
from adaptdel.core.checks import check_fields
from adaptdel.core.noise import Deletion
from adaptdel.core.rates import Rate, rate_from_dict
from adaptdel.measures.class_measures import check_class_rows

FORMAT = 2


@dataclass(frozen=True)
class Confirmation:
    """The second measurement of the chosen candidate.

    Attributes:
        rows: the number of inputs.
        is_fresh: whether these are inputs on which no candidate was compared before; otherwise they are the same ones,
            in another cross-validation.
        comparison: the candidate against the reference, on these inputs.
    """

    rows: int
    is_fresh: bool
    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"rows": self.rows, "is_fresh": self.is_fresh, "comparison": self.comparison.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Confirmation:
        """Rebuild a confirmation from `to_dict`."""
        check_fields(values, {"rows": "a whole number", "is_fresh": "true or false", "comparison": "an object"})
        return cls(values["rows"], values["is_fresh"], _comparison(values["comparison"]))


@dataclass(frozen=True)
class RateSelection:
    """The rate that was chosen among candidates, with the comparisons behind the choice.

    Attributes:
        rate: the deletion rate.
        chosen: the place of the chosen candidate in ``candidates``.
        reference: the place of the most accurate rate that needs no calibration.
        candidates: every candidate that was measured, in order.
        settings: the settings in plain values, with hashes of the base classifier and of the examples.
        warnings: a sentence for each thing to know before the rate is used.
        confirmation: the second measurement of the chosen candidate; None for a rate that needs no calibration, or
            without inputs to measure it on.
        rejected: the places of candidates that a second measurement did not confirm.
        classes: the measures by class under the chosen rate, as of `ClassTable.to_dict`.
        confusion: inputs by label and answer under the chosen rate.
        base: the base classifier that was trained under the chosen rate; None if it was not trained again.
    """

    rate: Rate
    chosen: int
    reference: int
    candidates: tuple[Comparison, ...]
    settings: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    confirmation: Confirmation | None = None
    rejected: tuple[int, ...] = ()
    classes: tuple[Mapping[str, Any], ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    base: BaseClassifier | None = field(default=None, compare=False)

    @property
    def noise(self) -> Deletion:
        """The noise to certify with."""
        return Deletion(self.rate)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain values from which `from_dict` rebuilds the selection, without the base classifier."""
        return {
            "format": FORMAT,
            "rate": self.rate.to_dict(),
            "chosen": self.chosen,
            "reference": self.reference,
            "candidates": [comparison.to_dict() for comparison in self.candidates],
            "settings": dict(self.settings),
            "warnings": list(self.warnings),
            "confirmation": None if self.confirmation is None else self.confirmation.to_dict(),
            "rejected": list(self.rejected),
            "classes": [dict(row) for row in self.classes],
            "confusion": [list(row) for row in self.confusion],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RateSelection:
        """Rebuild a selection from `to_dict`."""
        try:
            check_fields(values, {"candidates": "a list", "settings": "an object", "warnings": "a list"})
            check_fields(values, {"chosen": "a whole number", "reference": "a whole number", "rate": "an object"})
            candidates = tuple(map(_comparison, values["candidates"]))
            confirmed = values.get("confirmation")
            confirmation = None if confirmed is None else Confirmation.from_dict(confirmed)
            if not 0 <= values["chosen"] < len(candidates) or not 0 <= values["reference"] < len(candidates):
                raise ValueError("chosen and reference must be places in candidates")
            classes, confusion = values.get("classes", ()), values.get("confusion", ())
            check_class_rows(classes)
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"a selection of a rate must have its fields: {error}") from None
        return cls(
            rate_from_dict(values["rate"]),
            values["chosen"],
            values["reference"],
            candidates,
            dict(values["settings"]),
            tuple(map(str, values["warnings"])),
            confirmation,
            tuple(map(int, values.get("rejected", ()))),
            tuple(classes),
            tuple(tuple(map(int, row)) for row in confusion),
        )


def _comparison(values: Mapping[str, Any]) -> Comparison:
    """Rebuild a comparison from `Comparison.to_dict`."""
    names = {field.name: _TYPES[str(field.type)] for field in fields(Comparison)}
    check_fields(values, names)
    return Comparison(**{name: values[name] for name in names})


_TYPES = {
    "str": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "Mapping[str, Any]": "an object",
}
