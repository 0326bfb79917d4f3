"""The options of commands that certify on an engine, and those of data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from adaptdel.engines.engine import ENGINE, ENGINES, EngineSettings

Command = TypeVar("Command", bound=Callable[..., Any])
DATA_HELP = (
    "Data: a file (JSON, CSV or Parquet, also gzipped), a glob in quotes, a folder of such files, an address such as "
    "s3://bucket/folder, - for standard input, or a Hugging Face data set. Can be given several times."
)
_OPTIONS = (
    click.option(
        "--engine",
        default=ENGINE.engine,
        show_default=True,
        type=click.Choice(ENGINES),
        help="Where to work: on this machine, or on a Ray cluster.",
    ),
    click.option(
        "--workers",
        default=None,
        type=int,
        help="Number of worker processes. Each loads the model.  [default: 1; on Ray, all CPUs but one]",
    ),
    click.option(
        "--ray-address",
        default=None,
        metavar="ADDRESS",
        help="Ray: auto, or the address of a running cluster.  [default: start Ray on this machine]",
    ),
    click.option(
        "--cpus-per-worker",
        default=ENGINE.cpus_per_worker,
        show_default=True,
        type=int,
        help="Ray: CPUs that each worker reserves, and its threads.",
    ),
    click.option(
        "--gpus-per-worker",
        default=ENGINE.gpus_per_worker,
        show_default=True,
        type=float,
        help="Ray: GPUs that each worker reserves; 0.5 shares a GPU between two.",
    ),
)
NAMES = ("engine", "workers", "ray_address", "cpus_per_worker", "gpus_per_worker")


def engine_options(command: Command) -> Command:
    """Add the options of the engine to a command; `engine_settings` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def engine_settings(options: dict[str, Any]) -> EngineSettings:
    """The engine that the options of a command name; the options are removed."""
    return EngineSettings(**{name: options.pop(name) for name in NAMES})


def data_path(data: tuple[str, ...]) -> str | tuple[str, ...]:
    """The data that an option names: one path as it is, or several."""
    return data[0] if len(data) == 1 else data
