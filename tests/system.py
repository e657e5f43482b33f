"""Programs of the system that some tests need. `python -m tests.system` installs those of `make test` where it may, and
`python -m tests.system all` those of `make test-all`; a test whose program is missing is skipped by name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = {"bwrap": "bubblewrap", "/usr/bin/python3": "python3-minimal", "openssl": "openssl", "strace": "strace"}
"""The Debian package of each program, or of each file, that `make test` wants."""
MORE = {
    "caddy": "caddy",
    "chromium": "chromium",
    "docker-compose": "docker-compose",
    "faketime": "faketime",
    "pgbouncer": "pgbouncer",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
}
"""The same of what `make test-all` wants besides."""


def need(program: str) -> str:
    """The path of a program, or the file itself. Skips the test by name where it is missing."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed (Debian package {(PACKAGES | MORE)[program]})")
    return found


def install(wanted: dict[str, str]) -> None:
    """All that is missing, in one call of the package manager: as root on Debian, and nothing elsewhere."""
    missing = sorted({package for program, package in wanted.items() if shutil.which(program) is None})
    if not missing or os.geteuid() != 0 or not Path("/etc/debian_version").exists():
        return
    sys.stderr.write(f"Installing {', '.join(missing)} ...\n")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends"]
    if _ran(["apt-get", "update", "-q"], environ) and _ran([*command, *missing], environ):
        return
    for package in missing:  # one that this distribution does not have must not keep the others away
        if not _ran([*command, package], environ):
            sys.stderr.write(f"{package} could not be installed; its tests are skipped.\n")


def _ran(command: list[str], environ: dict[str, str]) -> bool:
    return subprocess.run(command, env=environ, capture_output=True, timeout=600, check=False).returncode == 0


if __name__ == "__main__":
    install(PACKAGES | MORE if sys.argv[1:] == ["all"] else PACKAGES)
