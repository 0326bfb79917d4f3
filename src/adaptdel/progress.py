"""Progress of long calls: a tqdm bar on a terminal, lines in a log, or a callable of the user's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Report = Callable[[int, int], None]
DELAY = 2.0  # seconds before a bar appears: short calls show none
BAR_INTERVAL, LOG_INTERVAL = 0.2, 60.0  # seconds between two updates
LOG_FORMAT = "{desc}: {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"


class ProgressBar:
    """A tqdm bar that is called with the number of finished items and of all items.

    Items that were finished before the first call, as in a run that is resumed, do not count towards the speed.

    Args:
        noun: the name of the items.
        log: whether to write a line a minute, for a log file, instead of a bar.
    """

    def __init__(self, noun: str, *, log: bool = False) -> None:
        from tqdm import tqdm

        if log:
            lines = {"mininterval": LOG_INTERVAL, "miniters": 1, "bar_format": LOG_FORMAT, "file": _Lines()}
            self._bar = tqdm(desc=noun, delay=LOG_INTERVAL, **lines)
        else:
            self._bar = tqdm(desc=noun, delay=DELAY, mininterval=BAR_INTERVAL, dynamic_ncols=True, file=sys.stderr)

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


class _Lines:
    """A file that turns the updates of a bar into lines on standard error."""

    def write(self, text: str) -> None:
        line = text.strip()
        if line:
            sys.stderr.write(line + "\n")

    def flush(self) -> None:
        sys.stderr.flush()


def reporter(progress: Any, noun: str) -> Report | None:
    """Return what to call with (done, total), or None for no progress.

    Args:
        progress: a callable, which is returned; True for a bar; False or None for none; "auto" for a bar if standard
            error is a terminal; "log", as on the command line, for a bar on a terminal and a line a minute elsewhere.
        noun: the name of the items.
    """
    if callable(progress):
        report: Report = progress
        return report
    terminal = sys.stderr.isatty()
    if progress is True or (progress in ("auto", "log") and terminal):
        return ProgressBar(noun)
    if progress == "log":
        return ProgressBar(noun, log=True)
    if progress in (False, None, "auto"):
        return None
    raise ValueError(f"progress must be True, False, 'auto', 'log' or a callable (done, total), got {progress!r}")
