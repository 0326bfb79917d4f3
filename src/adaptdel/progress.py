"""Progress of long calls: a tqdm bar on standard error, or a callable of the user's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Report = Callable[[int, int], None]
DELAY = 2.0  # seconds before a bar appears: short calls show none


class ProgressBar:
    """A tqdm bar that is called with the number of finished items and of all items.

    Items that were finished before the first call, as in a run that is resumed, do not count towards the speed.
    """

    def __init__(self, noun: str) -> None:
        from tqdm import tqdm

        self._bar = tqdm(desc=noun, delay=DELAY, mininterval=0.2, dynamic_ncols=True, file=sys.stderr)

    def __call__(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` items are finished."""
        bar = self._bar
        if bar.total is None and done > 1:
            bar.initial = bar.n = bar.last_print_n = done
            bar.unpause()
        bar.total = total
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    def note(self, text: str) -> None:
        """Show a text after the bar, from its next update on."""
        self._bar.set_postfix_str(text, refresh=False)


def reporter(progress: Any, noun: str) -> Report | None:
    """Return what to call with (done, total), or None for no progress.

    Args:
        progress: a callable, which is returned; True for a bar; False or None for none; "auto" for a bar if standard
            error is a terminal.
        noun: the name of the items.
    """
    if callable(progress):
        report: Report = progress
        return report
    if progress is True or (progress == "auto" and sys.stderr.isatty()):
        return ProgressBar(noun)
    if progress in (False, None, "auto"):
        return None
    raise ValueError(f"progress must be True, False, 'auto' or a callable (done, total), got {progress!r}")
