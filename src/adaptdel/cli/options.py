"""Options that several commands share: ``--set NAME=VALUE``, the list of what can be set, columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from inspect import cleandoc
from typing import Any, TypeVar

import click

from adaptdel.text.data import DATA

Settings = TypeVar("Settings", bound=Any)


def read_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE pairs by name. A value is JSON, numbers separated by commas, or a text.

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


def changed(default: Settings, pairs: Iterable[str]) -> Settings:
    """Settings with the values of NAME=VALUE pairs; an unknown name is refused with the list of all."""
    values, known = read_settings(pairs), [field.name for field in fields(default)]
    unknown = [name for name in values if name not in known]
    if unknown:
        raise ValueError(f"--set: there is no setting {unknown[0]!r:.60}: choose one of {', '.join(known)}")
    return replace(default, **values)


def set_option(command: Any) -> Any:
    """``--set NAME=VALUE``, repeatable: the argument ``settings`` of the command."""
    text = "Another setting; repeatable."
    return click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help=text)(command)


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
        help="List what --set can set, and end.",
    )


def column_options(command: Any) -> Any:
    """The columns and the encoding of a labelled file for a trained model, which knows the columns of its training."""
    for option in (
        click.option("--encoding", default=DATA.encoding, show_default=True, help="Encoding of the file."),
        click.option("--label-column", help=f"Column of the labels.  [default: as in training, or {DATA.label}]"),
        click.option("--text-column", help=f"Column of the texts.  [default: as in training, or {DATA.text}]"),
    ):
        command = option(command)
    return command


def described(kind: Any, skip: Iterable[str] = ()) -> str:
    """The fields of a dataclass, or of an instance, their values and what the docstring says of them."""
    attributes = cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE)
    texts = {name: " ".join(text.replace("``", "").split()) for name, text in entries}
    shown = [field for field in fields(kind) if field.name not in (*skip, "details")]
    return "\n".join(
        f"  {field.name}={getattr(kind, field.name, field.default)}: {texts.get(field.name, '')}" for field in shown
    )
