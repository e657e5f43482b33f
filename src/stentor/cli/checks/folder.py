"""The data folder and the key files in it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from stentor.auth.api_keys import admin_key_file
from stentor.cli.checks.finding import Finding, Situation
from stentor.core import filesystem

LITTLE, TOO_LITTLE = 1_000_000_000, 50_000_000
"""Bytes free below which there is a warning, and a problem."""


def data_folder(situation: Situation) -> Iterator[Finding]:
    folder = situation.settings.data_dir
    if not folder.exists():
        yield _missing(folder)
        return
    if not folder.is_dir():
        yield Finding("problem", "data folder", f"{folder} is no folder: choose another with SERVICE_DATA_DIR.")
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Finding("problem", "data folder", f"{folder} is not writable for this user: change its owner or mode.")
        return
    for path, mode in filesystem.find_open_paths(folder):
        message = f"Other users may look into {path}: `chmod {mode:o} {path}`, or start the service, which does it."
        yield Finding("warning", "data folder", message)
    yield _space(folder)


def _missing(folder: Path) -> Finding:
    parent = next(p for p in folder.absolute().parents if p.exists())
    if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK):
        return Finding("ok", "data folder", f"{folder} does not exist yet; the first start makes it.")
    return Finding("problem", "data folder", f"{folder} does not exist and cannot be made in {parent}.")


def _space(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    said = f"{folder} is writable, {free / 1e9:.1f} GB are free."
    if free < TOO_LITTLE:
        return Finding("problem", "data folder", f"{said} The store will soon refuse writes: make room.")
    if free < LITTLE:
        return Finding("warning", "data folder", f"{said} Make room.")
    return Finding("ok", "data folder", said)


PUBLIC = ".pub"
"""The half of a key that is for others to read."""


def key_files(situation: Situation) -> Iterator[Finding]:
    keys = admin_key_file(situation.settings.data_dir).parent
    files = sorted(p for p in keys.iterdir() if p.is_file() and p.suffix != PUBLIC) if keys.is_dir() else []
    for path in files:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            yield Finding(
                "problem", "key files", f"{path} has mode {mode:04o}, others may read it: `chmod 600 {path}`."
            )
        else:
            yield Finding("ok", "key files", f"{path} is readable for its owner alone.")
    if not files:
        yield Finding("ok", "key files", "There are none.")
