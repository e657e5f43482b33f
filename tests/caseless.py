"""A disk that takes names which differ in letter case for one, as those of macOS and Windows do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def ignore_case(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    """From now on what is below the root is found in any letter case."""

    def find(path: str, folder: int | None) -> str:
        if folder is not None:
            return _stored(os.listdir(folder), path)  # noqa: PTH208 - of a descriptor
        if not Path(path).is_relative_to(root):
            return path
        found = root
        for part in Path(path).relative_to(root).parts:
            found /= _stored([path.name for path in found.iterdir()] if found.is_dir() else [], part)
        return str(found)

    for function in (os.stat, os.open):

        def call(path: Any, *args: Any, made: Any = function, dir_fd: int | None = None, **options: Any) -> Any:
            return made(find(path, dir_fd) if isinstance(path, str) else path, *args, dir_fd=dir_fd, **options)

        monkeypatch.setattr(os, function.__name__, call)


def _stored(names: list[str], name: str) -> str:
    return next((stored for stored in names if stored.lower() == name.lower()), name)
