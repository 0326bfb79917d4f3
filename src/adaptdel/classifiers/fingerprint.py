"""The fingerprint of Python objects that classify: a hash of everything that their answers can depend on.

Objects are taken apart as pickle would do it. Functions and classes of the user count by their code, constants,
defaults, closures and the global variables that they name; those of installed packages by their names.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np

VOLATILE = ("_stop_words_id", "_sklearn_version")  # a memory address; the version of the library
_SCALARS = (str, int, float, complex, bool, bytes, type(None), type(...), np.generic)
_OF_NO_EFFECT = (
    "__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__",
    "__abstractmethods__", "_abc_impl",
)  # fmt: skip
_INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class _OpaqueError(Exception):
    """The state of an object cannot be seen."""


def fingerprint(value: Any) -> str:
    """The SHA-256 of all that an object's answers can depend on; "" if a part of its state cannot be seen."""
    try:
        return _Describer().describe(value)
    except (_OpaqueError, RecursionError):
        return ""


class _Describer:
    """Describes objects; what contains itself is described by the way back to it."""

    def __init__(self) -> None:
        self._path: list[int] = []
        self._described: dict[int, tuple[Any, str]] = {}  # with the object, so that its id is not used again

    def describe(self, value: Any) -> str:
        """A text that differs for objects that differ."""
        if isinstance(value, np.dtype) or (isinstance(value, _SCALARS) and _is_installed(type(value).__module__)):
            return f"{type(value).__name__}:{value!r}"
        if id(value) in self._described:
            return self._described[id(value)][1]
        if id(value) in self._path:
            return f"the object {len(self._path) - self._path.index(id(value))} levels above"
        self._path.append(id(value))
        text = _digest(type(value).__qualname__, self._parts(value))
        self._path.pop()
        self._described[id(value)] = value, text
        return text

    def _parts(self, value: Any) -> Iterable[str]:
        if isinstance(value, np.ndarray) and value.dtype.kind != "O":
            return [str(value.dtype), str(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
        if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
            values = value.detach().cpu().flatten().view(sys.modules["torch"].uint8)
            return [str(value.dtype), str(tuple(value.shape)), hashlib.sha256(values.numpy().tobytes()).hexdigest()]
        if type(value) in (list, tuple):
            return map(self.describe, value)
        if type(value) in (set, frozenset):
            return sorted(map(self.describe, value))
        if type(value) in (dict, MappingProxyType):
            pairs = sorted((self.describe(key), self.describe(part)) for key, part in value.items())
            return (text for pair in pairs for text in pair)
        if isinstance(value, ModuleType):
            return _of_module(value.__name__)
        if isinstance(value, CodeType):
            return self._of_code(value)
        if isinstance(value, MethodType):
            return [self.describe(value.__func__), self.describe(value.__self__)]
        if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, (ModuleType, type(None))):
            return [value.__qualname__, self.describe(value.__self__)]
        inner = inspect.unwrap(value) if callable(value) else value
        if inner is not value and not isinstance(value, (FunctionType, type)):  # such as a cache around a function
            return [self.describe(inner)]
        if isinstance(value, (FunctionType, type)) or (callable(value) and hasattr(value, "__qualname__")):
            has_name = "<" not in value.__qualname__  # unlike a lambda, or a function inside another
            if has_name and _is_installed(value.__module__ or "builtins"):
                return [value.__qualname__, *_of_module(value.__module__ or "builtins")]
            return self._of_function(value) if isinstance(value, FunctionType) else self._of_class(value)
        return self._of_instance(value)

    def _of_code(self, code: CodeType) -> Iterable[str]:
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return map(self.describe, (code.co_code, code.co_consts, getattr(code, "co_exceptiontable", b""), shape, names))

    def _of_function(self, function: FunctionType) -> Iterable[str]:
        cells = [cell.cell_contents if _is_filled(cell) else None for cell in function.__closure__ or ()]
        named = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
        attributes = vars(function)
        defaults = (function.__defaults__, function.__kwdefaults__)
        return map(self.describe, (function.__code__, defaults, cells, named, attributes))

    def _of_class(self, cls: Any) -> Iterable[str]:
        if not isinstance(cls, type):
            raise _OpaqueError
        own = {name: value for name, value in vars(cls).items() if name not in _OF_NO_EFFECT}
        return map(self.describe, (cls.__qualname__, list(cls.__bases__), own))

    def _of_instance(self, value: Any) -> Iterable[str]:
        if isinstance(value, (staticmethod, classmethod)):
            return [self.describe(value.__func__)]
        if isinstance(value, property):
            return map(self.describe, (value.fget, value.fset, value.fdel))
        try:
            reduced = value.__reduce_ex__(2)
        except Exception:
            raise _OpaqueError from None
        if isinstance(reduced, str):
            return [reduced]
        build, arguments, *rest = reduced
        state, items, pairs = (*rest, None, None, None)[:3]
        if isinstance(state, dict):
            state = {name: part for name, part in state.items() if name not in VOLATILE}
        return map(self.describe, (build, arguments, state, list(items or ()), list(pairs or ())))


def _digest(kind: str, parts: Iterable[str]) -> str:
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(f"/{len(data)}:".encode() + data)
    return digest.hexdigest()


def _names(code: CodeType) -> list[str]:
    """The names that a function and the functions inside it look up."""
    inner = [name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names(constant)]
    return sorted({*code.co_names, *inner})


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@cache
def _is_installed(name: str) -> bool:
    """Whether a module belongs to Python or to an installed package."""
    top = name.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top == "adaptdel":
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and any(Path(file).resolve().is_relative_to(folder) for folder in _INSTALLED)


def _of_module(name: str) -> list[str]:
    """The name of a module; for a module of the user also its file."""
    if _is_installed(name):
        return [name]
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        raise _OpaqueError
    return [name, hashlib.sha256(Path(file).read_bytes()).hexdigest()]
