"""Programs of the system that some tests need."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest


def need(program: str, package: str = "") -> str:
    """The program's path. Installs its package as root on Debian; else skips the test by name."""
    found = shutil.which(program) or _install(program, package or program)
    if found is None:
        pytest.skip(f"{program} is not installed (Debian package {package or program})")
    return found


def need_file(path: str, package: str) -> str:
    """The same for a program at this very path."""
    if not Path(path).exists():
        _install(Path(path).name, package)
    if not Path(path).exists():
        pytest.skip(f"{path} does not exist (Debian package {package})")
    return path


@cache
def _install(program: str, package: str) -> str | None:
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        return None
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", package]
    for attempt in (command, ["apt-get", "update", "-q"], command):
        subprocess.run(attempt, env=environ, capture_output=True, timeout=300, check=False)
        if found := shutil.which(program):
            return found
    return None
