"""The options of commands that certify on an engine, and those of data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from adaptdel.runs.engine import ENGINE, ENGINES, EngineSettings
from adaptdel.settings import DTYPES

Command = TypeVar("Command", bound=Callable[..., Any])
DATA_HELP = (
    "Data: a file (JSON, CSV or Parquet, also gzipped), a glob in quotes, a folder of such files, an address such as "
    "s3://bucket/folder, or a Hugging Face data set. Can be given several times."
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
        "--per-worker",
        default="1,0",
        show_default=True,
        metavar="CPUS,GPUS",
        help="Ray: CPUs (and threads) and GPUs that each worker reserves; 1,0.5 shares a GPU between two.",
    ),
)

_RUNNING = (
    click.option("--device", default=None, help="Of a transformer: cpu, cuda, cuda:1.  [default: the GPU if any]"),
    click.option("--dtype", default=None, type=click.Choice(DTYPES), help="Its precision.  [default: the model's]"),
    click.option("--batch-tokens", default=None, type=int, help="The largest number of subwords in its batches."),
    click.option("--compile", is_flag=True, default=None, help="Let torch compile it."),
)


def running_options(command: Command) -> Command:
    """Add the options of where and how a transformer runs; `running_settings` reads them."""
    for option in reversed(_RUNNING):
        command = option(command)
    return command


def running_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that are given."""
    names = ("device", "dtype", "batch_tokens", "compile")
    return {name: options[name] for name in names if options[name] is not None}


def engine_options(command: Command) -> Command:
    """Add the options of the engine to a command; `engine_settings` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def engine_settings(options: dict[str, Any]) -> EngineSettings:
    """The engine that the options of a command name; the options are removed."""
    cpus, _, gpus = options.pop("per_worker").partition(",")
    try:
        reserved: dict[str, Any] = {"cpus_per_worker": int(cpus), "gpus_per_worker": float(gpus or 0)}
    except ValueError:
        raise ValueError(f"per_worker must be CPUs and GPUs such as 2,0.5, got {cpus},{gpus}") from None
    return EngineSettings(**{name: options.pop(name) for name in ("engine", "workers", "ray_address")}, **reserved)


def data_path(data: tuple[str, ...]) -> str | tuple[str, ...]:
    """The data that an option names: one path as it is, or several."""
    return data[0] if len(data) == 1 else data
