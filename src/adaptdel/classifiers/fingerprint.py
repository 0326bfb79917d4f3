"""The fingerprint of Python objects that classify: a hash of everything that their answers can depend on.

Objects are taken apart as pickle would do it. Functions and classes of the user count by their code, constants,
defaults, closures and the variables that they name, of their own module and of other modules of the user; those of
installed packages count by their names. What a function reads from files or looks up by a computed name is not seen.
"""

from __future__ import annotations

import copyreg
import hashlib
import inspect
import pickle
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import numpy as np

VOLATILE = ("_stop_words_id", "_sklearn_version")  # a memory address; the version of the library
_SCALARS = (str, int, float, complex, bool, bytes, type(None), type(...), np.generic)
_OF_NO_EFFECT = (
    "__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__",
    "__abstractmethods__", "_abc_impl",
)  # fmt: skip
_PLACES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_INSTALLED = tuple(Path(place).resolve() for place in (*_PLACES, *site.getsitepackages(), site.getusersitepackages()))
_CACHE = type(lru_cache(len))


class _OpaqueError(Exception):
    """The state of an object cannot be seen."""


def fingerprint(value: Any) -> str:
    """The SHA-256 of all that an object's answers can depend on; "" if a part of its state cannot be seen."""
    try:
        return _Describer().describe(value)
    except Exception:  # whatever an object raises that is taken apart
        return ""


def own_code(parts: Iterable[Any]) -> str:
    """The fingerprints of the classes of some objects, as far as they are the user's; "" if there are none."""
    classes = {type(part) for part in parts}
    return " ".join(sorted(fingerprint(own) for own in classes if not _is_installed(own.__module__)))


class _Describer:
    """Describes objects, numbered in the order in which they are met; what contains itself shows its number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._described: dict[int, tuple[Any, str]] = {}  # with the object, so that its id is not used again

    def describe(self, value: Any) -> str:
        """A text that differs for objects that differ."""
        if isinstance(value, np.dtype) or (isinstance(value, _SCALARS) and _is_installed(type(value).__module__)):
            return f"{type(value).__name__}:{value!r}"
        if id(value) in self._described:
            return self._described[id(value)][1]
        if id(value) in self._numbers:
            return f"the object {self._numbers[id(value)]}"
        self._numbers[id(value)] = len(self._numbers)
        text = _digest(type(value).__qualname__, self._parts(value))
        self._described[id(value)] = value, text
        return text

    def _parts(self, value: Any) -> Iterable[str]:
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return [str(value.dtype), str(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
        if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
            values = value.detach().cpu().flatten().view(sys.modules["torch"].uint8)
            return [str(value.dtype), str(tuple(value.shape)), hashlib.sha256(values.numpy().tobytes()).hexdigest()]
        if type(value) in (list, tuple):
            return map(self.describe, value)
        if type(value) in (set, frozenset):
            return sorted(map(self.describe, value))
        if type(value) in (dict, MappingProxyType):  # whose order may matter
            return (self.describe(part) for pair in value.items() for part in pair)
        if isinstance(value, ModuleType):
            return _of_module(value)
        if isinstance(value, CodeType):
            return self._of_code(value)
        if isinstance(value, MethodType):
            return [self.describe(value.__func__), self.describe(value.__self__)]
        if isinstance(value, MethodWrapperType):
            return [value.__name__, self.describe(value.__self__)]
        if isinstance(value, BuiltinFunctionType) and not isinstance(value.__self__, (ModuleType, type(None))):
            return [value.__qualname__, self.describe(value.__self__)]
        if isinstance(value, _CACHE):
            return [self.describe(inspect.unwrap(value, stop=lambda inner: not isinstance(inner, _CACHE)))]
        took_name = not isinstance(value, type) and "__qualname__" in getattr(value, "__dict__", ())  # of what it wraps
        if callable(value) and hasattr(value, "__qualname__") and not took_name:
            has_name = "<" not in value.__qualname__  # unlike a lambda, or a function inside another
            if has_name and _is_installed(value.__module__ or "builtins"):
                return [value.__qualname__, value.__module__ or "builtins"]
            return self._of_function(value) if isinstance(value, FunctionType) else self._of_class(value)
        return self._of_instance(value)

    def _of_code(self, code: CodeType) -> Iterable[str]:
        shape = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return map(self.describe, (code.co_code, code.co_consts, getattr(code, "co_exceptiontable", b""), shape, names))

    def _of_function(self, function: FunctionType) -> Iterable[str]:
        code, defaults = function.__code__, (function.__defaults__, function.__kwdefaults__)
        cells = [cell.cell_contents if _is_filled(cell) else None for cell in function.__closure__ or ()]
        space = function.__globals__ | dict(zip(code.co_freevars, cells, strict=True))
        named = dict(_variables(space, [*_names(code), *code.co_freevars], set()))
        return map(self.describe, (code, defaults, named, vars(function)))

    def _of_class(self, cls: Any) -> Iterable[str]:
        if not isinstance(cls, type):
            raise _OpaqueError
        own = {name: value for name, value in vars(cls).items() if name not in _OF_NO_EFFECT}
        return map(self.describe, (cls.__qualname__, type(cls), list(cls.__bases__), own))

    def _of_instance(self, value: Any) -> Iterable[str]:
        if isinstance(value, (staticmethod, classmethod)):
            return [self.describe(value.__func__)]
        if isinstance(value, property):
            return map(self.describe, (value.fget, value.fset, value.fdel))
        try:
            reduce = copyreg.dispatch_table.get(type(value))  # of regular expressions
            reduced = value.__reduce_ex__(2) if reduce is None else reduce(value)
        except Exception:
            raise _OpaqueError from None
        # a class of the user may pickle less than its answers depend on
        own = None if _is_installed(type(value).__module__) else (type(value), _in_order(object.__getstate__(value)))
        if isinstance(reduced, str):  # the name of a global variable
            space = sys.modules[pickle.whichmodule(value, reduced)]  # type: ignore[attr-defined]
            if own is None and getattr(space, reduced, None) is not value:
                raise _OpaqueError
            return map(self.describe, (reduced, own))
        build, arguments, *rest = reduced
        state, items, pairs = (*rest, None, None, None)[:3]
        return map(self.describe, (build, arguments, _in_order(state), own, list(items or ()), list(pairs or ())))


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


def _variables(space: Mapping[str, Any], names: Iterable[str], seen: set[str]) -> Iterator[tuple[str, Any]]:
    """The variables of these names in a namespace, and in those of the user's modules among them."""
    for name in names:
        if name in space:
            value = space[name]
            yield name, value
            if isinstance(value, ModuleType) and value.__name__ not in seen and not _is_installed(value.__name__):
                seen.add(value.__name__)
                for inner, part in _variables(vars(value), names, seen):
                    yield f"{value.__name__}.{inner}", part


def _in_order(state: Any) -> Any:
    """The state of an object, whose attributes have no order."""
    if isinstance(state, tuple):
        return tuple(map(_in_order, state))
    return {n: state[n] for n in sorted(state, key=str) if n not in VOLATILE} if type(state) is dict else state


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@cache
def _is_installed(name: str) -> bool:
    """Whether a module belongs to Python or to an installed package."""
    top, file = name.partition(".")[0], getattr(sys.modules.get(name), "__file__", None)
    if file is None or top in ("adaptdel", "__main__"):  # the main module may be that of a tool, such as pytest
        return top == "adaptdel" or top in sys.stdlib_module_names
    return any(Path(file).resolve().is_relative_to(folder) for folder in _INSTALLED)


def _of_module(module: ModuleType) -> list[str]:
    """The name of a module; for a module of the user also its file."""
    if _is_installed(module.__name__):
        return [module.__name__]
    if module.__file__ is None:
        raise _OpaqueError
    return [module.__name__, hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()]
