"""Files and folders that may not be read, also in tests that run as root, who may read all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def make_unreadable(monkeypatch: pytest.MonkeyPatch, *names: str | Path) -> None:
    """From now on nobody may open a file or folder of one of these names."""
    open_any = os.open

    def refuse(path: Any, *args: Any, **options: Any) -> int:
        if path in names:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return open_any(path, *args, **options)

    monkeypatch.setattr(os, "open", refuse)
