"""`stentor config`: every setting, its value and where it came from."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from stentor.cli import display
from stentor.cli.inspection import Inspection, inspect
from stentor.cli.options import AsJson, DataDir
from stentor.cli.output import notice, out, print_json, reporting


def config(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List every setting, its value and where it came from; secrets are never shown."""
    with reporting(as_json=as_json):
        found = inspect(os.environ, data_dir)
        if as_json:
            print_json(document(found))
        else:
            _show(found)


def document(found: Inspection) -> dict[str, Any]:
    """`{settings: [...], keys: [...], problem}` as plain values."""
    settings, keys = msgspec.to_builtins(found.settings), msgspec.to_builtins(found.keys)
    return {"settings": settings, "keys": keys, "problem": found.problem}


def _show(found: Inspection) -> None:
    rows = [(s.env, s.problem or s.value, s.source, s.doc) for s in found.settings]
    out.print(display.table(("setting", "value", "source", "meaning"), rows))
    if found.keys:
        keys = [(k.variable, k.role, k.problem or ", ".join(k.permissions), k.tenant) for k in found.keys]
        out.print(display.table(("key", "role", "permissions", "tenant"), keys))
    if found.problem:
        notice(f"A start would be refused: {found.problem}", "red")
