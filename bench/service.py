"""A `stentor serve` of its own in a subprocess, with every setting but the rate limit at its default."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

KEY = "bench-key-51f0c2"
STOP_SECONDS = 30


@dataclass
class Service:
    process: subprocess.Popen[str]
    host: str
    port: int
    dashboard: str = ""
    """Address of the dashboard."""

    def connect(self) -> Client:
        return Client(self.host, self.port)

    def rss_mb(self) -> float:
        """Resident memory in MB (10^6 bytes), from smaps_rollup, which counts every page."""
        return rss_mb(self.process.pid)


class Client:
    """One keep-alive connection of the standard library; closes with its block."""

    def __init__(self, host: str, port: int) -> None:
        self._http = HTTPConnection(host, port, timeout=120)
        self._headers = {"X-API-Key": KEY, "Content-Type": "application/json"}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The answer's body. Raises RuntimeError for anything but success."""
        self._http.request(method, path, body, self._headers)
        answer = self._http.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content.decode(errors='replace')[:300]}")
        return content

    def get(self, path: str) -> Any:
        return json.loads(self.send("GET", path))

    def lines(self, path: str) -> Iterator[bytes]:
        """The lines of an event stream as they come, up to its end."""
        self._http.request("GET", path, headers=self._headers)
        answer = self._http.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"GET {path}: {answer.status}")
        while line := answer.readline():
            yield line


def command(data_dir: Path, port: int) -> list[str]:
    serve = [sys.executable, "-m", "stentor", "serve", "--json"]
    return [*serve, "--gateway-port", str(port), "--data-dir", str(data_dir)]


def environment() -> dict[str, str]:
    """Nothing of the caller's settings gets in."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**kept, "MCP_API_KEY": KEY, "SERVICE_RATE_LIMIT_PER_MINUTE": "0"}


@contextmanager
def serving(data_dir: Path, settings: Mapping[str, str] | None = None) -> Iterator[Service]:
    """A service on a free port, stopped at the end. Raises RuntimeError when it does not start."""
    environ = environment() | dict(settings or {})
    with (data_dir.parent / "serve.log").open("w") as log:
        process = subprocess.Popen(command(data_dir, 0), stdout=subprocess.PIPE, stderr=log, text=True, env=environ)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError((data_dir.parent / "serve.log").read_text())
        ready = json.loads(line)
        host, port = ready["gateway"].removeprefix("http://").split(":")
        yield Service(process, host, int(port), ready.get("dashboard", ""))
    finally:
        stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("the kernel does not tell the resident memory")
