"""`Calibration`: the rate that was found, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from adaptdel.calibration.objective import KINDS, Evaluation
from adaptdel.checks import check_fields
from adaptdel.noise import Deletion
from adaptdel.rates import BinnedRate, InterpolatedRate, rate_from_dict

FORMAT = 1


@dataclass(frozen=True)
class BinResult:
    """What was found for one bin. The measures are those of ``keep`` as a constant kept length in the bin's sample.

    Attributes:
        lower: where the bin begins.
        upper: where it ends; None for the last one, which has no end.
        centre: where an interpolated rate keeps exactly ``keep``.
        keep: the expected kept length K.
        searched: the K that the search found, from which a monotone fit may depart.
        radius: the largest radius whose certified accuracy reaches the threshold; −1 if none does.
        certified: the certified accuracy at that radius (at 0, if none).
        clean: the share of right answers, settled or not.
        mean_radius: the mean certified radius, with 0 for the wrong and the unsettled.
        count: the number of examples it was measured on.
        available: how many examples the bin holds.
        reached: whether ``keep`` reaches the threshold, or the least clean accuracy.
    """

    lower: float
    upper: float | None
    centre: float
    keep: float
    searched: float
    radius: int
    certified: float
    clean: float
    mean_radius: float
    count: int
    available: int
    reached: bool


@dataclass(frozen=True)
class Calibration:
    """AdaptDel+: a rate calibrated on examples, and everything that led to it.

    Attributes:
        rate: the deletion rate.
        bins: what was found for every bin.
        settings: how it was found, in plain values, with hashes of the base classifier and of the examples.
        trace: every evaluation in the order of the search.
        warnings: what to know before the rate is used, a sentence each.
    """

    rate: BinnedRate | InterpolatedRate
    bins: tuple[BinResult, ...]
    settings: Mapping[str, Any]
    trace: tuple[Evaluation, ...]
    warnings: tuple[str, ...] = ()

    @property
    def noise(self) -> Deletion:
        """The noise to certify with."""
        return Deletion(self.rate)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain values from which `from_dict` rebuilds the calibration."""
        return {
            "format": FORMAT,
            "rate": self.rate.to_dict(),
            "bins": [asdict(one) for one in self.bins],
            "settings": dict(self.settings),
            "trace": [evaluation.to_dict() for evaluation in self.trace],
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Calibration:
        """Rebuild a calibration from `to_dict`."""
        try:
            if values["format"] != FORMAT:
                raise ValueError(f"a calibration must be of format {FORMAT}, got {values['format']!r}")
            rate = rate_from_dict(values["rate"])
            if not isinstance(rate, (BinnedRate, InterpolatedRate)):
                raise ValueError(f"the rate of a calibration must be binned or interpolated, got {rate!r}")
            names = {field.name: KINDS[str(field.type)] for field in fields(BinResult)}
            _check_parts(values, names)
            return cls(
                rate,
                tuple(BinResult(**{name: one[name] for name in names}) for one in values["bins"]),
                dict(values["settings"]),
                tuple(Evaluation.from_dict(one) for one in values["trace"]),
                tuple(map(str, values["warnings"])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a calibration must have the fields of Calibration.to_dict, got {error}") from None


def _check_parts(values: Mapping[str, Any], names: Mapping[str, str]) -> None:
    try:
        check_fields(values, {"bins": "a list", "settings": "an object", "trace": "a list", "warnings": "a list"})
        for part in values["bins"]:
            check_fields(part, names)
    except ValueError as error:
        raise ValueError(f"a calibration must have its fields: {error}") from None
