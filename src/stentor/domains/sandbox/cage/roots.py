"""The folders that the operator maps, and where a program beneath one lies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stentor.core.errors import InvalidRequest


def program_folder(roots: Mapping[str, tuple[Path, bool]], program: str | None) -> Path | None:
    """The folder of `ROOT` or `ROOT/sub/folder`. Raises InvalidRequest for what leads elsewhere."""
    if program is None:
        return None
    name, *parts = program.split("/")
    if name not in roots:
        raise InvalidRequest(
            f"There is no root {name!r} for 'program'; the operator maps them with SERVICE_CAGE_ROOTS."
        )
    root = roots[name][0]
    found = root.joinpath(*parts)
    if any(part in ("", ".", "..") for part in parts) or not found.resolve().is_relative_to(root.resolve()):
        raise InvalidRequest(f"The program {program!r} does not lie beneath its root.")
    if not found.is_dir():
        raise InvalidRequest(f"The program {program!r} is no folder.")
    return found.resolve()
