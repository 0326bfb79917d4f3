"""What files name and users may add: noises, rates, bounds and base classifiers, by name; plug-ins that add them."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, ClassVar, Generic, Self, TypeVar

from adaptdel.core.plain import to_plain

PLUGINS = "adaptdel.plugins"  # the group of entry points that name modules which register something

Entry = TypeVar("Entry")
Added = TypeVar("Added")


_REGISTRIES: list[Registry[Any]] = []


class NotRegisteredError(ValueError):
    """Nothing is registered under a name, or a plug-in that may register it cannot be imported."""


def own_modules() -> tuple[str, ...]:
    """The modules outside this package that registered something, for worker processes to import."""
    modules = {_origin(entry)[0] for registry in _REGISTRIES for entry in registry.entries.values()}
    return tuple(sorted(module for module in modules if module.partition(".")[0] != "adaptdel"))


class Registry(Generic[Entry]):
    """Classes or functions of a sort by name: ours, and those that the modules of users register.

    A file holds names only: nothing that it names is imported, except modules of this package.

    Args:
        noun: what they are, in messages.
        check: raises ValueError for something that cannot be registered.
        modules: the modules of this package that register an entry, by its name; imported when it is asked for.
    """

    def __init__(self, noun: str, check: Callable[[Any], None], modules: Mapping[str, str]) -> None:
        self.noun, self._check, self._modules = noun, check, modules
        self.entries: dict[str, Any] = {}
        _REGISTRIES.append(self)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self.entries, *self._modules}))

    def add(self, name: str) -> Callable[[Added], Added]:
        """A decorator that registers a class or a function; a class gets the name as its ``kind``."""
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"the name of a {self.noun} must be such as 'my_{self.noun}', got {name!r}")

        def register(entry: Added) -> Added:
            self._check(entry)
            if name in self.entries:
                is_taken = _origin(self.entries[name]) != _origin(entry)
            else:
                is_taken = self._modules.get(name, entry.__module__) != entry.__module__
            if is_taken:
                raise ValueError(f"the name of a {self.noun} must not be taken, got {name!r}")
            if isinstance(entry, type):
                entry.kind = name  # type: ignore[attr-defined]
            self.entries[name] = entry
            return entry

        return register

    def get(self, name: Any) -> Entry:
        """What is registered under a name; plug-ins are imported if it is not known without them."""
        if not isinstance(name, str):
            raise ValueError(f"the kind of a {self.noun} must be a name, got {name!r:.60}")
        if name not in self.entries and name in self._modules:
            import_module(self._modules[name])
        for entry_point in entry_points(group=PLUGINS) if name not in self.entries else ():
            try:
                entry_point.load()
            except Exception as error:  # whatever the module of a stranger raises
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                plugin = f"{entry_point.value!r:.60}"
                raise NotRegisteredError(f"the plug-in {plugin} cannot be imported: {reason:.200}") from None
        if name not in self.entries:
            raise NotRegisteredError(
                f"the {self.noun} {name!r:.60} is not registered, only {', '.join(self)}: import the module that "
                "registers it first (--import MODULE on the command line), or install its package"
            )
        entry: Entry = self.entries[name]
        return entry

    def is_own(self, name: Any) -> bool:
        """Whether this package registers a name itself."""
        return name in self._modules


def _origin(entry: Any) -> tuple[str, str]:
    return entry.__module__, entry.__qualname__


class Described(ABC):
    """A rate or a noise: a dataclass that can be written as a dictionary of plain values and rebuilt from it."""

    noun: ClassVar[str]
    """"rate" or "noise", for messages."""
    kind: ClassVar[str]
    """The name under which the class is registered and saved."""
    immutable: ClassVar[bool] = False
    """Whether an object never changes, so that results that depend on it alone are cached. A subclass does not inherit
    it: it declares ``immutable = True`` itself, and is then hashable (a frozen dataclass)."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "immutable" not in cls.__dict__:
            cls.immutable = False

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of plain values: the kind and the fields."""
        if "kind" not in type(self).__dict__:  # that of a parent would name another distribution
            raise NotRegisteredError(
                f"{type(self).__name__} must be registered to be written: decorate it with register_{self.noun}"
            )
        names = [field.name for field in fields(self) if field.init]  # type: ignore[arg-type]
        return {"kind": self.kind} | {name: to_plain(getattr(self, name)) for name in names}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild an object from `to_dict`."""
        return build(cls.noun, cls, values)


def check_described(base: type[Any]) -> Callable[[Any], None]:
    """A check of a class: that it is a finished dataclass which derives from ``base``."""

    def check(cls: Any) -> None:
        if not (isinstance(cls, type) and issubclass(cls, base) and is_dataclass(cls)):
            raise ValueError(f"a {base.noun} must be a dataclass that derives from {base.__name__}, got {cls!r}")
        if missing := ", ".join(sorted(getattr(cls, "__abstractmethods__", ()))):
            raise ValueError(f"a {base.noun} must define every abstract method, {cls.__name__} lacks {missing}")

    return check


def from_dict(kinds: Registry[type[Any]], values: Any) -> Any:
    """Rebuild an object from `Described.to_dict`."""
    if not isinstance(values, Mapping):
        raise ValueError(f"a {kinds.noun} must be a dictionary with its kind, got {values!r}")
    return kinds.get(values.get("kind")).from_dict(values)


def build(noun: str, cls: type[Any], values: Mapping[str, Any]) -> Any:
    """Build a dataclass of the kind that ``values["kind"]`` names from the other values."""
    arguments = {name: value for name, value in values.items() if name != "kind"}
    known = {field.name for field in fields(cls) if field.init}
    kind = values["kind"]
    for name in arguments:
        if name not in known:
            raise ValueError(f"a {noun} of kind {kind!r} takes {', '.join(sorted(known)) or 'nothing'}, got {name!r}")
    try:
        return cls(**arguments)
    except TypeError:
        raise ValueError(f"a {noun} of kind {kind!r} needs {', '.join(sorted(known))}, got {arguments}") from None
