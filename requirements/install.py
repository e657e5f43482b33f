"""Install pinned requirements into the environment of the Python that runs this: `install.py [PIP OPTION ...]`.

With uv, which takes a third of pip's time; with pip if uv cannot be installed, fails, or does not know a setting of
pip's configuration. Both check the same hashes. The settings of pip that name where packages come from are passed on,
so that a mirror is never bypassed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

UV = Path(sys.executable).with_name("uv")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV_VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
}
IGNORED = {
    "cache-dir",
    "config-file",
    "constraint",  # every version is pinned here; uv rejects a constraint beside hashes
    "default-timeout",
    "disable-pip-version-check",
    "retries",
    "root-user-action",
    "timeout",
}
"""Settings of pip that do not decide which packages are installed."""
SHOWN = ("Downloading ", "Prepared ", "Installed ", "Bytecode compiled ")
"""What uv says that shows how far it is: its large downloads, and the end of each step."""

FAILED = """
The set-up failed; the lines above say why. If they say "Failed to establish a new connection" or "from versions: none",
this machine does not reach pypi.org: check the network, or name a proxy (HTTPS_PROXY) or a mirror (PIP_INDEX_URL).
The same command continues the set-up.
"""


def uv_environment() -> dict[str, str] | None:
    """Return the environment for uv, None if pip has a setting that uv cannot be given."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    variables = {"UV_HTTP_TIMEOUT": "20", "UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
    for line in listed.splitlines():
        match = re.fullmatch(r"[^=]*\.([\w-]+)='(.*)'", line)
        name = match[1].replace("_", "-") if match else line
        if match and name in UV_VARIABLES:
            separator = "," if name == "find-links" else " "
            variables[UV_VARIABLES[name]] = separator.join(match[2].replace("\\n", " ").split())
        elif name not in IGNORED:
            return None
    return {**os.environ, **variables}


def install_with_uv(options: list[str]) -> bool:
    environment = uv_environment()
    if environment is None:
        return False
    if not UV.exists():
        pinned = ["--no-deps", "--require-hashes", "-r", str(Path(__file__).with_name("uv.txt"))]
        if subprocess.run([*PIP, "--quiet", "install", *pinned], capture_output=True).returncode:
            return False
    command = [str(UV), "pip", "install", "--index-strategy", "unsafe-best-match", *options]
    command += ["--python", sys.executable]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as uv:
        assert uv.stderr is not None
        for line in uv.stderr:
            if line.strip().startswith(SHOWN):
                sys.stderr.write(f"  {line.strip()}\n")
    return uv.returncode == 0


def main(options: list[str]) -> int:
    try:
        if install_with_uv(options):
            return 0
        failed = subprocess.run([*PIP, "--quiet", "install", *options]).returncode
        if failed:
            sys.stderr.write(FAILED)
        return failed
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped. The same command continues the set-up.\n")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
