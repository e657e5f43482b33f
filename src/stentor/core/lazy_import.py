"""Modules that are imported on first use, because the start of the service would wait for them.

Type checkers and editors do not follow the call, so a module is named twice:

    if TYPE_CHECKING:
        import aiohttp
    else:
        aiohttp = lazy_module("aiohttp")

aiohttp takes a fifth of the time of all imports, NumPy 0.1 s and 20 MB. Modules that may be missing, those of an extra
of pyproject.toml, are imported inside functions instead, in a `try`.
"""

from __future__ import annotations

import importlib
from typing import Any


class LazyModule:
    """Stands for a module and imports it when its first attribute is read. Thread-safe, as imports are."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        # Found directly from now on, without this method.
        setattr(self, attribute, value)
        return value


def lazy_module(name: str) -> Any:
    """Return a stand-in for the module of this name. Errors of the import are raised on first use."""
    return LazyModule(name)


def install_command(extra: str) -> str:
    """Return the command that installs an extra; from a checkout, because no version is on PyPI yet."""
    return f"pip install '.[{extra}]' in a checkout"
