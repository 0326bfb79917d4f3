"""A request that was accepted, the outbox in which its answers are delivered, and the size of batches."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from adaptdel.certification.pool import Ticket
from adaptdel.certification.sampling import SamplingPlan
from adaptdel.text.units import Tokens

START_WORK = 20_000  # copies times tokens of the first batch: little, as the speed of the classifier is not known
LEAST_WORK, MOST_WORK = 2_000, 20_000_000
MEMORY = 0.9  # the weight of a batch falls to this share with every further batch
MOST_VOTES_MESSAGES = 32  # of one text that wait to be read; older ones are dropped


class Outbox:
    """What a request is told, from the thread of the model to whoever waits.

    Its size is bounded, however slowly it is read: some messages of votes, the looks and the result of every text.

    Args:
        notify: called after every message, in the thread of the model.
    """

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._messages: dict[int, tuple[str, Any]] = {}  # in order
        self._number = 0
        self._votes: dict[int, deque[int]] = {}  # the messages of votes, by text

    def put(self, name: str, index: int, value: Any) -> None:
        """Add a message about the text ``index``."""
        with self._lock:
            self._number += 1
            self._messages[self._number] = (name, value)
            if name == "votes":
                numbers = self._votes.setdefault(index, deque())
                numbers.append(self._number)
                if len(numbers) > MOST_VOTES_MESSAGES:
                    del self._messages[numbers.popleft()]
        self._notify()

    def take(self) -> list[tuple[str, Any]]:
        """All messages since the last call, in order."""
        with self._lock:
            messages = list(self._messages.values())
            self._messages.clear()
            self._votes.clear()
        return messages


class Job:
    """One request: its texts, how they are sampled, and its outbox.

    Attributes:
        texts: the texts.
        plan: how votes are sampled; without estimation votes for a prediction.
        outbox: gets "votes", "look", "result" and "failed"; each with a dictionary, but "failed" with a pair (index,
            `Problem`).
        influence: whether results say which tokens carry the answer.
        stream: whether votes and looks are told.
        deadline: by the monotonic clock.
        started: by the monotonic clock.
        waiting: the numbers of the texts that are not in the pool yet.
        tickets: of the texts that are in the pool.
        tokens: the number of tokens of the texts that were in the pool so far.
        order: the number of the request.
        split: the tokens of the next text, if it was split already.
    """

    def __init__(
        self,
        texts: Sequence[str],
        plan: SamplingPlan,
        outbox: Outbox,
        *,
        deadline: float,
        influence: bool = False,
        stream: bool = False,
    ) -> None:
        self.texts, self.plan, self.outbox = list(texts), plan, outbox
        self.deadline, self.influence, self.stream = deadline, influence, stream
        self.started = time.monotonic()
        self.waiting = deque(range(len(self.texts)))
        self.tickets: set[Ticket] = set()
        self.tokens = self.order = 0
        self.split: Tokens | None = None


class BatchSize:
    """How many copies times tokens the next batch may have, so that it takes about as long as intended.

    The time of a batch is a fixed part plus a part for its work, fitted to the recent batches by least squares. If the
    fixed part is so long that the aim cannot be met, batches are large enough that it is at most half of their time:
    smaller ones would waste the classifier.

    Args:
        seconds: the intended time of a batch.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._sums = [0.0] * 5  # of weights, work, time, work², work · time
        self.work = START_WORK

    def measured(self, work: int, seconds: float) -> None:
        """A batch took so long."""
        new = (1.0, work, seconds, float(work) ** 2, work * seconds)
        self._sums = [MEMORY * old + more for old, more in zip(self._sums, new, strict=True)]
        count, works, times, squares, products = self._sums
        spread = squares - works**2 / count
        slope = (products - works * times / count) / spread if spread > 0.01 * squares else 0.0
        fixed = (times - slope * works) / count if slope > 0 else 0.0
        if fixed <= 0:
            slope, fixed = max(times, 1e-9) / max(works, 1.0), 0.0
        aim = max(self._seconds - fixed, fixed) / slope
        self.work = int(min(max(aim, self.work / 4, LEAST_WORK), 2 * self.work, MOST_WORK))
