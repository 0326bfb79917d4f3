"""Prints where defaults differ from the settings, with every default of the settings changed to another valid value.

It runs in a process of its own (``python -m tests.altered_settings``): the settings have to be changed before any other
module takes its defaults from them.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import adaptdel

OTHER = {
    "adaptive": "fixed", "edit": "del", "tight": "paper", "word": "char", "balanced": "mean", "auto": "all",
    "adaptdel": "cert-ed", "hash": "vocabulary", "float32": "bfloat16", "text": "body", "label": "class", "id": "key",
    "utf-8": "latin-1",
}  # fmt: skip
BY_FIELD = {
    "min_accuracy": 0.5,
    "bins": "auto",
}  # the objective "mean" needs a least accuracy; bins have no other name

BY_FIELD_AND_VALUE = {("loss", "auto"): "copies"}


class Altered(ast.NodeTransformer):
    """Changes the default of every field of a class."""

    def __init__(self) -> None:
        self.count = 0

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        if isinstance(node.value, (ast.Constant, ast.Tuple)):
            value = ast.literal_eval(node.value)
            field = node.target.id if isinstance(node.target, ast.Name) else ""
            other = BY_FIELD_AND_VALUE.get((field, value), self.change(value))
            changed = BY_FIELD.get(field, other)
            self.count += changed != value
            node.value = ast.parse(repr(changed), mode="eval").body
        return node

    def change(self, value: Any) -> Any:
        if isinstance(value, bool):
            return not value
        if isinstance(value, tuple):
            return tuple(self.change(part) for part in value)
        if isinstance(value, (int, float)):
            return value + 1 if isinstance(value, int) else value / 2
        return OTHER.get(value, value)


def alter_settings() -> int:
    """Put modules with other defaults in the place of those that hold them; returns how many were changed."""
    altered = Altered()
    for stem in ("hyperparameters", "settings"):
        name = f"adaptdel.{stem}"
        assert name not in sys.modules
        path = Path(adaptdel.__file__).with_name(f"{stem}.py")
        tree = ast.fix_missing_locations(altered.visit(ast.parse(path.read_text(encoding="utf-8"))))
        module = ModuleType(name)
        sys.modules[name] = module
        exec(compile(tree, str(path), "exec"), module.__dict__)
    return altered.count


if __name__ == "__main__":
    changed_defaults = alter_settings()
    from tests.test_settings import mismatches

    sys.stdout.write(json.dumps([changed_defaults, mismatches()], default=repr))
