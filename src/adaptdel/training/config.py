"""Several trainings in one YAML file: the fields of the command line, validated before the first begins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from adaptdel.files import read_bytes
from adaptdel.training.folders import Job
from adaptdel.training.settings import check_names

LONGEST = 2**18  # characters of a file: thousands of runs
MOST_NODES = 20_000  # values with aliases filled in: a few lines can stand for billions


def read_jobs(path: str | Path) -> list[Job]:
    """The jobs of a file: one mapping of fields, or ``defaults`` and a list of ``runs``.

    Paths in the file are relative to the folder that the command is run in.
    """
    try:
        found = _plain_yaml(read_bytes(Path(path)).decode("utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: must be YAML in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        raise ValueError(f"{path}{where}: not YAML: {' '.join(str(reason).split()):.200}") from None
    if not isinstance(found, Mapping) or not found:
        raise ValueError(f"{path}: must hold fields such as 'data: train.csv', or a list of runs")
    if "runs" not in found and "defaults" not in found:
        return [_job(found, f"{path}")]
    check_names_in(found, ["defaults", "runs"], str(path))
    defaults, runs = found.get("defaults") or {}, found.get("runs")
    if not isinstance(runs, list) or not runs or not all(isinstance(run, Mapping) for run in runs):
        raise ValueError(f"{path}: runs must be a list with the fields of each run")
    if not isinstance(defaults, Mapping):
        raise ValueError(f"{path}: defaults must be fields, got {defaults!r:.60}")
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
        raise ValueError(f"{where}: {error!s:.300}") from None


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, which refuses a name that stands twice in a mapping."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """A mapping whose names differ; those that a merge ("<<") brings are not counted."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            name = (key.tag, key.value) if isinstance(key, yaml.ScalarNode) else id(key)
            if name in seen:
                raise yaml.composer.ComposerError(None, None, f"{key.value!r:.60} stands there twice", key.start_mark)
            seen.add(name)
        return node


def _plain_yaml(text: str) -> Any:
    """What a YAML text holds; YAMLError for anything that cannot be read, or is far larger with aliases filled in."""
    if len(text) > LONGEST:
        raise yaml.composer.ComposerError(None, None, f"longer than {LONGEST} characters")
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MOST_NODES:
            raise yaml.composer.ComposerError(None, None, f"more than {MOST_NODES} values with aliases filled in")
        return loader.construct_document(node)
    except yaml.YAMLError:
        raise
    except RecursionError:
        raise yaml.composer.ComposerError(None, None, "nested too deeply") from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:  # of a tag such as !!int
        raise yaml.composer.ComposerError(None, None, f"a value does not fit its tag: {error}") from None
    finally:
        loader.dispose()


def _size(node: Any, known: dict[int, int]) -> int:
    """How many values a node holds if every alias is filled in."""
    if id(node) in known:
        if not known[id(node)]:
            raise yaml.composer.ComposerError(None, None, "an alias stands inside what it names", node.start_mark)
        return known[id(node)]
    known[id(node)] = 0
    inner = [] if isinstance(node, yaml.ScalarNode) else node.value
    parts = [part for pair in inner for part in (pair if isinstance(pair, tuple) else (pair,))]
    known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]
