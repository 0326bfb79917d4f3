"""The settings of engines with their defaults, and the engine that they name."""

from __future__ import annotations

from dataclasses import dataclass

from adaptdel.core.checks import check_choice, check_int, check_real
from adaptdel.engines.cluster import RayEngine
from adaptdel.engines.engine import Engine
from adaptdel.engines.local import LocalEngine

ENGINES = ("local", "ray")


@dataclass(frozen=True)
class EngineSettings:
    """Where inputs are certified.

    Attributes:
        engine: "local" for this machine, "ray" for a Ray cluster.
        workers: the number of worker processes; None for 1, and on Ray for as many as fit with one CPU left free.
        ray_address: "auto" or the address of a running cluster; None starts Ray on this machine.
        cpus_per_worker: on Ray, the CPUs that each worker reserves, and its threads.
        gpus_per_worker: on Ray, the GPUs that each worker reserves; a fraction shares a GPU.
    """

    engine: str = "local"
    workers: int | None = None
    ray_address: str | None = None
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0.0

    def __post_init__(self) -> None:
        check_choice("engine", self.engine, ENGINES)
        if self.workers is not None:
            check_int("workers", self.workers, least=1)
        check_int("cpus_per_worker", self.cpus_per_worker, least=1)
        check_real("gpus_per_worker", self.gpus_per_worker, accepted="at least 0", least=0.0, most=1024.0)
        if self.engine != "ray":
            for name in ("ray_address", "cpus_per_worker", "gpus_per_worker"):
                if getattr(self, name) != getattr(type(self), name):
                    raise ValueError(f"{name} is only for the engine ray")

    @property
    def is_distributed(self) -> bool:
        """Whether other processes certify."""
        return self.engine != "local" or (self.workers or 1) > 1


ENGINE = EngineSettings()


def start_engine(settings: EngineSettings) -> Engine:
    """The engine, ready to work.

    ImportError if Ray is not installed; ValueError if there is no cluster at the address.
    """
    if settings.engine == "ray":
        return RayEngine(
            address=settings.ray_address,
            workers=settings.workers,
            cpus_per_worker=settings.cpus_per_worker,
            gpus_per_worker=settings.gpus_per_worker,
        )
    return LocalEngine(settings.workers or 1)
