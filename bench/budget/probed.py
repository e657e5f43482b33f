"""A `stentor serve` of its own that is left alone (`plain`), counted or sampled; see `probe`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.budget.shim import Shim
from bench.llm.gateways import Way
from bench.service import KEY, Service, command, environment, stop

Totals = dict[str, float]
SETTLE_SECONDS, QUIET_SECONDS = 60, 0.05
"""How long to wait for work in the background, and the processor time in a second below which there is none."""


@dataclass
class Probed:
    service: Service
    link: socket.socket | None
    shim: Shim | None
    database: Path
    samples: bool = False

    @property
    def way(self) -> Way:
        """Where chats go."""
        return Way(self.service.port, "openai/bench", {"Authorization": f"Bearer {KEY}"}, self.service.process)

    def totals(self) -> Totals:
        """What the probe counted so far; empty for a plain service."""
        if self.link is None:
            return {}
        self.link.sendall(b"?")
        answer = b""
        while not answer.endswith(b"\n"):
            answer += self.link.recv(1 << 16)
        return dict(json.loads(answer))

    def cpu(self) -> dict[str, float]:
        """Seconds on a processor by thread: `loop` for the event loop, `others` for all others, from schedstat."""
        pid, seconds = self.service.process.pid, {"loop": 0.0, "others": 0.0}
        for thread in Path(f"/proc/{pid}/task").iterdir():
            try:
                spent = int((thread / "schedstat").read_text().split()[0]) / 1e9
            except OSError:
                continue  # it has ended
            seconds["loop" if thread.name == str(pid) else "others"] += spent
        return seconds

    def settle(self) -> None:
        """Wait until the work that goes on after the answers is done: notes, the tree, the search index."""
        for _ in range(SETTLE_SECONDS):
            before = self._busy_seconds()
            time.sleep(1)
            if self._busy_seconds() - before < QUIET_SECONDS:
                return

    def _busy_seconds(self) -> float:
        # The sampler is busy itself, but does not count itself.
        return sum((self.totals() if self.samples else self.cpu()).values())

    def written(self) -> int:
        """Bytes that the kernel has been given for a disk."""
        for line in Path(f"/proc/{self.service.process.pid}/io").read_text().splitlines():
            if line.startswith("write_bytes:"):
                return int(line.split()[1])
        raise RuntimeError("the kernel does not tell what the process wrote")


@contextmanager
def probed(
    folder: Path, mode: str, provider: int, settings: Mapping[str, str] | None = None, shim: Shim | None = None
) -> Iterator[Probed]:
    """All settings at their defaults but the rate limit, the log on stderr and the provider of models."""
    data = folder / mode
    environ = environment() | (shim.environment if shim else {}) | dict(settings or {})
    environ |= {"OPENAI_API_KEY": "of-nobody", "OPENAI_BASE_URL": f"http://127.0.0.1:{provider}/v1"}
    words, ours, theirs = command(data, 0), None, None
    if mode != "plain":
        ours, theirs = socket.socketpair()
        words = [sys.executable, "-m", "bench.budget.probe", mode, str(theirs.fileno()), *words[3:]]
    log = folder / f"{mode}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            words,
            cwd=Path(__file__).parents[2],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            pass_fds=[theirs.fileno()] if theirs else [],
        )
    if theirs is not None:
        theirs.close()
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(log.read_text())
        ready: dict[str, Any] = json.loads(line)
        host, port = ready["gateway"].removeprefix("http://").split(":")
        yield Probed(Service(process, host, int(port)), ours, shim, data / "stentor.db", mode == "sample")
    finally:
        stop(process)
        if ours is not None:
            ours.close()
