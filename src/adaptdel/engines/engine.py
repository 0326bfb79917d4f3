"""The interface of engines: a task, which every worker loads once, and items, which are distributed to the workers.

``engine.map(task, items)`` yields a result for each item in the order in which they are finished. The task and the
items are sent to other processes, so they hold plain values. Results do not depend on the engine or on the number of
workers, only their order does. The process that calls `Engine.map` is the only one that writes files of a run.
"""

from __future__ import annotations

import os
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

from adaptdel import __version__
from adaptdel.models.smoothed import SmoothedClassifier

Work = Callable[[Iterable[tuple[int, Any]]], Iterator[tuple[int, Any]]]  # from numbered items to numbered results

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerError(ValueError):
    """A worker ended, or could not start, before its items were finished."""


@dataclass(frozen=True)
class ModelSource:
    """What a worker loads.

    Attributes:
        model: the folder of a model.
        settings: replace those of the model.
        fingerprint: of the base classifier; another one is an error.
        modules: to import first.
        backend: runs the model, if it is a transformer; None for the one that it was saved with.
    """

    model: Path
    settings: dict[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None
    modules: tuple[str, ...] = ()
    backend: str | None = None

    def load(self) -> SmoothedClassifier:
        """Load the model; ValueError if its fingerprint differs."""
        for name in self.modules:
            import_module(name)
        model = with_settings(SmoothedClassifier.load(self.model, backend=self.backend), self.settings)
        if self.fingerprint is not None and model.base_classifier().fingerprint() != self.fingerprint:
            raise ValueError(f"{self.model}: the model was changed during the run")
        return model

    def at(self, copies: Mapping[Path, Path]) -> ModelSource:
        """The same model in another folder."""
        return replace(self, model=copies[self.model])


def with_settings(
    model: SmoothedClassifier, settings: Mapping[str, Any], backend: str | None = None
) -> SmoothedClassifier:
    """A shallow copy of a model with other settings, and another backend if one is given, for a run."""
    model = copy(model)
    if backend is not None:
        model.base_ = model.base_classifier().with_backend(backend)
    for name, value in settings.items():
        setattr(model, name, value)
    if "ops" not in settings and model.rule().noise.masks_tokens:
        model.ops = "edit"  # under masking it means substitutions
    model.progress = False
    return model


@dataclass(frozen=True)
class Task(ABC):
    """What workers do with items.

    Attributes:
        source: the model; None if `load` needs none.
        kept: in messages, what an error does not lose.
    """

    kept: ClassVar[str] = "everything certified so far is kept"

    source: ModelSource | None

    @abstractmethod
    def load(self) -> Work:
        """Called once in every worker: the function that turns numbered items into numbered results.

        Results may come in any order. A ValueError, here or in the function, ends the whole `Engine.map`.
        """

    @abstractmethod
    def failed(self, item: Any, reason: str) -> Any:
        """The result for an item that ends every worker that tries it."""

    def size(self, item: Any) -> int:
        """How long an item is, in characters: long items are not sent together."""
        return 0

    def describe(self, items: Sequence[Any]) -> str:
        """Items in messages, such as "rows 3, 4"."""
        return f"{len(items)} items"

    def paths(self) -> tuple[Path, ...]:
        """The files and folders that `load` reads: machines that do not have them get copies."""
        return () if self.source is None else (self.source.model,)

    def at(self, copies: Mapping[Path, Path]) -> Task:
        """The same task for copies of its `paths` in other places."""
        return self if self.source is None else replace(self, source=self.source.at(copies))

    @property
    def try_again(self) -> str:
        """The end of a message: what is kept, and what to do."""
        return f"{self.kept}: run the same command again"


class Engine(ABC):
    """Distributes items to workers; a context manager that stops them."""

    @abstractmethod
    def map(self, task: Task, items: Iterable[Any], total: int | None = None) -> Generator[Any, None, None]:
        """Yield the result of every item, in the order in which they are finished.

        Items are taken from the iterable only as fast as workers finish them.

        Args:
            task: what to do.
            items: any number of items.
            total: how many there are, if that is known: the last ones are then sent in small portions.
        """

    def close(self) -> None:
        """Stop the workers."""
        return

    @property
    @abstractmethod
    def workers(self) -> int:
        """The number of workers; for a cluster, the largest so far."""

    @property
    def description(self) -> str | None:
        """A sentence for the user when the engine is ready, such as where to watch it, or None."""
        return None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def thread_settings(threads: int) -> dict[str, str]:
    """Environment variables that give a worker so many threads, and no progress bars."""
    return dict.fromkeys(_THREADS, str(max(1, threads))) | {"TQDM_DISABLE": "1"}


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def library_versions() -> dict[str, str]:
    """The versions that results depend on: of Python, this library, and the libraries that compute."""
    names = [name for name in ("torch", "transformers", "onnxruntime") if name in sys.modules]
    installed = {"python": platform.python_version(), "adaptdel": __version__}
    for name in ("numpy", "scipy", *names):
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            installed[name] = "none"
    return installed


def sentence_of(error: Exception) -> str:
    """An error as a sentence; the type is named unless it is a ValueError."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
