"""A limit on the work of one derivation, for certificates from files that nobody vouches for.

A step is about a microsecond: a term of a sum in ball arithmetic, or a neighbour in double precision. Without a limit
nothing is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

STEPS = 30_000_000  # about half a minute; a text of a million tokens needs four fifths of them


class TooMuchWork(ValueError):
    """A derivation needs more steps than are allowed."""


_left: ContextVar[list[int] | None] = ContextVar("adaptdel_steps_left", default=None)


@contextmanager
def limited(steps: int | None) -> Iterator[None]:
    """Raise `TooMuchWork` once the work inside exceeds so many steps; None for no limit."""
    token = _left.set(None if steps is None else [steps])
    try:
        yield
    finally:
        _left.reset(token)


def spend(steps: int) -> None:
    """Count steps that are about to be taken."""
    left = _left.get()
    if left is not None:
        left[0] -= steps
        if left[0] < 0:
            raise TooMuchWork("it needs more steps than are allowed")
