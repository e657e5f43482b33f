"""The wiring: the only package that names concrete classes and reads settings. Begin with `kernel.build`.

Each name is imported when it is first used: a command that only opens the database with `storage` starts in half the
time without the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stentor.bootstrap.kernel import Kernel, build
    from stentor.bootstrap.service import Service, application, open_service

__all__ = ["Kernel", "Service", "application", "build", "open_service"]
_MODULES = {
    "Kernel": "kernel",
    "Service": "service",
    "application": "service",
    "build": "kernel",
    "open_service": "service",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
