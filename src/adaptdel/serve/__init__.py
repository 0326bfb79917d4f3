"""Certified answers as a service: the application behind ``adaptdel serve``, and clients.

The clients need no extra. The server needs the extra ``serve``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adaptdel.serve.client import CertifiedText, Client, Prediction, RemoteClassifier, ServeError, StreamEvent
from adaptdel.serve.configuration import ServeSettings

if TYPE_CHECKING:
    from adaptdel.serve.app import create_app
    from adaptdel.serve.service import ModelToServe, Service

__all__ = [
    "CertifiedText",
    "Client",
    "ModelToServe",
    "Prediction",
    "RemoteClassifier",
    "ServeError",
    "ServeSettings",
    "Service",
    "StreamEvent",
    "create_app",
]

_LATER = {
    "ModelToServe": "adaptdel.serve.service",
    "Service": "adaptdel.serve.service",
    "create_app": "adaptdel.serve.app",
}


def __getattr__(name: str) -> Any:
    """Import what needs the extra on first use."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(_LATER[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"a server needs {error.name}: pip install 'adaptdel[serve]'") from None
