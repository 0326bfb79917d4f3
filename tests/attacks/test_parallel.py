from __future__ import annotations

import pytest

from adaptdel.attacks.parallel import process_tasks


def test_a_task_that_runs_out_of_an_iterator_does_not_end_the_others_silently() -> None:
    """As `next(iter(()))` in a library does."""

    def work(task: int) -> int:
        return task if task < 2 else next(iter(()))

    results = process_tasks(lambda: work, range(4), 1)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(results)
