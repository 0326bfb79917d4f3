"""Options that several commands share: ``--set NAME=VALUE`` and the list of what can be set."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import fields
from inspect import cleandoc
from typing import Any

import click


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


def set_option(command: Any) -> Any:
    """``--set NAME=VALUE``, repeatable: the argument ``settings`` of the command."""
    text = "Another setting; repeatable."
    return click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help=text)(command)


def described(kind: type, skip: Iterable[str] = ()) -> str:
    """The fields of a dataclass with their defaults and what its docstring says of them, a line each."""
    attributes = cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE)
    texts = {name: " ".join(text.replace("``", "").split()) for name, text in entries}
    shown = [field for field in fields(kind) if field.name not in (*skip, "details")]
    return "\n".join(f"  {field.name}={field.default}: {texts.get(field.name, '')}" for field in shown)
