"""Options that several commands share: data, columns, engines, ``--set NAME=VALUE`` and the list of what can be set."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import fields
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click

from adaptdel.core.threat import Threat
from adaptdel.runs.engine import ENGINE, ENGINES
from adaptdel.settings import DTYPES
from adaptdel.text.data import DATA

DATA_HELP = (
    "Data: a file (JSON, CSV or Parquet, also gzipped), a glob in quotes, a folder of such files, an address such as "
    "s3://bucket/folder, or a Hugging Face data set. Repeatable."
)
RAY = ("ray_address", "cpus_per_worker", "gpus_per_worker")  # fields of `EngineSettings` for --set


def read_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE pairs by name. A value is JSON, numbers separated by commas, or a string.

    >>> read_settings(["learning_rate=1e-5", "kept=4,12", "loss=votes"])
    {'learning_rate': 1e-05, 'kept': [4, 12], 'loss': 'votes'}
    """
    chosen: dict[str, Any] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise ValueError(f"--set must be NAME=VALUE such as epochs=20, got {pair!r:.60}")
        chosen[name] = value
        for text in (value, f"[{value}]" if "," in value else value):
            try:
                chosen[name] = json.loads(text)
                break
            except json.JSONDecodeError:
                continue
    return chosen


def chosen_settings(pairs: Iterable[str], *groups: Iterable[str]) -> list[dict[str, Any]]:
    """The values of NAME=VALUE pairs, those of each group of names; an unknown name is refused with the list of all."""
    values, listed = read_settings(pairs), [list(group) for group in groups]
    known = [name for group in listed for name in group]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ValueError(f"--set: there is no setting {unknown[0]!r:.60}: choose one of {', '.join(known)}")
    return [{name: values[name] for name in group if name in values} for group in listed]


set_option = click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Any other setting; repeatable."
)


def list_settings_option(text: Callable[[], str]) -> Callable[[Any], Any]:
    """``--list-settings``: print what ``--set`` can set, and end."""

    def show(context: click.Context, _: click.Parameter, wanted: bool) -> None:
        if wanted:
            click.echo(text())
            context.exit()

    return click.option(
        "--list-settings",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="List what --set can set, and exit.",
    )


def _all(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


# The columns and the encoding of a labelled file for a trained model, which knows the columns of its training.
column_options = _all(
    click.option("--text-column", help=f"Column of the texts.  [default: as in training, or {DATA.text}]"),
    click.option("--label-column", help=f"Column of the labels.  [default: as in training, or {DATA.label}]"),
    click.option("--encoding", default=DATA.encoding, show_default=True, help="Encoding of the file."),
)
# Where a command works; what only Ray has is for --set.
engine_options = _all(
    click.option(
        "--engine",
        default=ENGINE.engine,
        show_default=True,
        type=click.Choice(ENGINES),
        help="Where to run: on this machine or on a Ray cluster.",
    ),
    click.option(
        "--workers", type=int, help="Worker processes, each with the model.  [default: 1; on Ray, all CPUs but one]"
    ),
)


def threat_option(default: str) -> Callable[[Any], Any]:
    """``--threat``, whose `Threat` is the parameter ``ops``; None if it is left out."""
    return click.option(
        "--threat",
        "ops",
        metavar="LIST",
        callback=lambda _, __, text: None if text is None else Threat.parse(text),
        help="The attacker: edit, or some of del,ins,sub; padding also allows any text before and after; "
        f"long counts an insertion of any length as one edit. Example: edit,padding.  [default: {default}]",
    )


# Where and how a transformer runs.
running_options = _all(
    click.option("--device", help="Device for a transformer: cpu, cuda or cuda:1.  [default: the GPU if there is one]"),
    click.option("--dtype", type=click.Choice(DTYPES), help="Precision for a transformer.  [default: the model's]"),
    click.option("--batch-tokens", type=int, help="Largest number of subwords in a batch for a transformer."),
)


def two_integers(text: str, separator: str, example: str) -> tuple[int, int]:
    """Numbers of votes such as "1000,4000" or "3960/4000"."""
    parts = text.split(separator)
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"votes must be two integers such as {example}, got {text!r}")
    return int(parts[0]), int(parts[1])


def data_path(data: tuple[str, ...]) -> str | tuple[str, ...]:
    """The data that an option names: one path as it is, or several."""
    return data[0] if len(data) == 1 else data


def described(kind: Any, skip: Iterable[str] = ()) -> str:
    """The fields of a dataclass, or of an instance, their values and what the docstring says of them."""
    attributes = cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE)
    texts = {name: " ".join(text.replace("``", "").split()) for name, text in entries}
    shown = [field for field in fields(kind) if field.name not in (*skip, "details")]
    return "\n".join(
        f"  {field.name}={getattr(kind, field.name, field.default)}: {texts.get(field.name, '')}" for field in shown
    )


def next_certify(model: Path) -> str:
    """The command that certifies with a model; the user has to name data that it was not trained on."""
    return (
        f"next: {shlex.join(['adaptdel', 'certify', str(model)])} --data TEST_FILE --out {shlex.quote(f'{model}-run')}"
    )
