"""Verify a certificate from an untrusted source: derive everything again from its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any

from adaptdel.certification.certificate import Certificate, digest_of
from adaptdel.core.checks import STEPS, TooMuchWork, check_names, limited

ROUNDING = 1e-12  # relative difference of numbers that are derived again
NOT_CHECKED = "not checked"
UNSTATED = object()


def verify(values: Mapping[str, Any], *, work: int | None = STEPS) -> list[str]:
    """The problems of a certificate's dictionary; an empty list if it is valid.

    The evidence has to be complete and possible under the plan, the digest has to match, and all that is derived has to
    follow from the evidence: from votes in ball arithmetic, from scores in integers. It cannot be derived that the
    evidence is that of the model, nor that what others have registered, such as a bound, is true.

    Args:
        values: as from `Certificate.to_dict`.
        work: the limit on the number of arithmetic steps, about a microsecond each; None for no limit. A certificate
            that needs more, for example because of an absurd length, is not checked, which is reported as a problem.
    """
    try:
        certificate = Certificate.from_dict(values)
        check_names("a certificate", values, ("derived", "digest"), values)
        wrong = [] if digest_of(values) == values["digest"] else ["the digest does not fit: the file was changed"]
        return wrong + verify_certificate(certificate, values["derived"], work=work)
    except ValueError as error:
        return [str(error)]
    except RecursionError:
        return ["values are nested too deeply"]


def verify_certificate(certificate: Certificate, stated: Any = UNSTATED, *, work: int | None = STEPS) -> list[str]:
    """The problems of a certificate, and what is stated, if that is given, otherwise than it is derived."""
    try:
        with limited(work):
            wrong = certificate.evidence.check(certificate.plan, certificate, work=work)
            derived = certificate.derived()
            if stated is UNSTATED:
                return wrong
            check_names("derived", stated, derived)
            return wrong + [
                f"{name} is {stated[name]!r:.60}, not {value!r:.60}"
                for name, value in derived.items()
                if not is_same(stated[name], value)
            ]
    except TooMuchWork:
        return [
            f"{NOT_CHECKED}: to derive it again for {certificate.length} tokens takes more than the {work} steps that "
            "are allowed: allow more with --work, or leave it out"
        ]


def is_same(stored: Any, derived: Any) -> bool:
    """Whether a value is the one that was derived, up to the rounding of another machine."""
    if isinstance(stored, float) and isinstance(derived, float):
        return stored == derived or isclose(stored, derived, rel_tol=ROUNDING)
    return type(stored) is type(derived) and bool(stored == derived)
