"""Models over HTTP: the application behind ``adaptdel serve``, and a client.

The server needs the extra ``serve``, the client the extra ``client``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from adaptdel.serve.configuration import ServeSettings

if TYPE_CHECKING:
    from adaptdel.serve.app import create_app
    from adaptdel.serve.client import CertifiedText, Client, Prediction, ServeError, StreamEvent
    from adaptdel.serve.service import ModelToServe, Service

__all__ = [
    "CertifiedText",
    "Client",
    "ModelToServe",
    "Prediction",
    "ServeError",
    "ServeSettings",
    "Service",
    "StreamEvent",
    "create_app",
]
_SERVER = {"ModelToServe": "service", "Service": "service", "create_app": "app"}


def __getattr__(name: str) -> Any:
    """Import what needs an extra on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_SERVER.get(name, 'client')}"), name)
    except ModuleNotFoundError as error:
        extra = "serve" if name in _SERVER else "client"
        raise ImportError(f"{name} needs {error.name}: pip install 'adaptdel[{extra}]'") from None
