"""A checkout as a user has it after cloning, with the service that its README starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.patience import until
from tests.ports import free_port
from tests.readme.blocks import ROOT, Block

SHOWN = ("Makefile", "README.md", "pyproject.toml", "requirements", "packages", "src", "docs", "deploy", "examples")


@dataclass
class Checkout:
    """What a user has after cloning, at a place of its own; the service answers on a free port."""

    folder: Path
    environ: dict[str, str]
    port: int

    def text(self, block: Block) -> str:
        return block.text.replace(":8080", f":{self.port}")

    def bash(self, block: Block) -> str:
        """Run a block as it stands; stops at the first command that fails."""
        command = ["bash", "-euo", "pipefail", "-c", self.text(block)]
        done = subprocess.run(command, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=1100)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, command: list[str]) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield process
        finally:
            process.terminate()
            process.communicate(timeout=200)


@contextmanager
def running_checkout(folder: Path, start: str, **variables: str) -> Iterator[Checkout]:
    """With its service, started by this command."""
    for name in SHOWN:
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    port = free_port()
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "SERVICE_GATEWAY_PORT": str(port), **variables}
    made = Checkout(folder, environ, port)
    with made.running(["bash", "-euc", f"exec {start}"]) as process:
        until(lambda: answers(port) or process.poll() is not None)
        assert process.poll() is None, process.communicate()[0]
        yield made


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").is_success
    except httpx.TransportError:
        return False
