"""Several trainings in one YAML file: the fields of the command line, validated before the first begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from adaptdel.training.folders import Job
from adaptdel.training.settings import check_names


def read_jobs(path: str | Path) -> list[Job]:
    """The jobs of a file: one mapping of fields, or ``defaults`` and a list of ``runs``.

    Paths in the file are relative to the folder that the command is run in.
    """
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: must be YAML in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{where}: not YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(found, Mapping) or not found:
        raise ValueError(f"{path}: must hold fields such as 'data: train.csv', or a list of runs")
    if "runs" not in found and "defaults" not in found:
        return [_job(found, f"{path}")]
    check_names_in(found, ["defaults", "runs"], str(path))
    defaults, runs = found.get("defaults") or {}, found.get("runs")
    if not isinstance(runs, list) or not runs or not all(isinstance(run, Mapping) for run in runs):
        raise ValueError(f"{path}: runs must be a list with the fields of each run")
    if not isinstance(defaults, Mapping):
        raise ValueError(f"{path}: defaults must be fields, got {defaults!r}")
    jobs = [_job({**defaults, **run}, f"{path}, run {number}") for number, run in enumerate(runs, start=1)]
    outs = [job.out for job in jobs]
    for number, out in enumerate(outs):
        if out in outs[:number]:
            raise ValueError(f"{path}: run {outs.index(out) + 1} and run {number + 1} have the same out, {out}")
    return jobs


def check_names_in(values: Mapping[str, Any], known: list[str], where: str) -> None:
    """`check_names` with the place in the message."""
    try:
        check_names(values, known)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _job(values: Mapping[str, Any], where: str) -> Job:
    given = dict(values)
    for name in ("rates", "kept"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    try:
        return Job.from_dict(given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
