"""Services and a PostgreSQL server that are started again whenever they died, each by a thread of its own."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.kills.hooks import COMMITS, LOG, POSTMASTER
from tests.faults.kills.mortality import KillLog
from tests.faults.server import Server
from tests.forkserver import HOOK, Process
from tests.ports import free_port
from tests.service import KEYS

KEY = KEYS["ADMIN"].split(":")[0]
OFF = ("DASHBOARD", "VAULT", "VAULT_TLS", "NOTES", "MCP")


class Keeper:
    """Starts something again when it died, until it is ended."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._calm = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def calm(self) -> None:
        """Kill it no more; what runs may die once more, as it has been told to."""
        self._calm.set()

    def end(self) -> None:
        self._ended.set()
        self._stop()
        self._thread.join(60)

    def _run(self) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Deaths:
    """When a member dies: at the latest after so many commits, and besides every so many seconds in the mean."""

    commits: int
    every: float


class Gateway(Keeper):
    """A `stentor serve` on one port."""

    def __init__(self, name: str, folder: Path, log: KillLog, deaths: Deaths, environ: dict[str, str]) -> None:
        super().__init__()
        port = str(free_port())
        self.address = f"http://127.0.0.1:{port}"
        self.unexpected: list[str] = []
        """How it ended when nobody killed it."""
        self._folder, self._log, self._deaths = folder / name, log, deaths
        self._errors = folder / f"{name}.log"
        base = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SERVICE_GATEWAY_PORT": port, "SERVICE_MEMORY": "0"}
        base |= {f"SERVICE_{other}_PORT": "0" for other in OFF} | {f"SERVICE_API_KEY_{k}": v for k, v in KEYS.items()}
        base |= {"SERVICE_RATE_LIMIT_PER_MINUTE": "0", "SERVICE_LLM_FIND_OLLAMA": "0", "SERVICE_BUILTIN_AGENTS": "0"}
        base |= {"SERVICE_TASK_MAX_ATTEMPTS": "100", "SERVICE_LEASE_SECONDS": "3", "SERVICE_EMBEDDING_MODEL": "none"}
        self._environ = base | environ
        self._process: Process | None = None

    def calm(self) -> None:
        super().calm()
        # It has been told when to die; the next one has not.
        if self._process is not None:
            self._process.kill()

    def _run(self) -> None:
        dice = random.Random()
        while not self._ended.is_set():
            hook = {HOOK: "tests.faults.kills.hooks", LOG: str(self._log.path), COMMITS: str(self._deaths.commits)}
            environ = self._environ | (hook if self._deaths.commits and not self._calm.is_set() else {})
            process = self._process = Process(["serve", "--json", "--data-dir", str(self._folder)], environ)
            errors = threading.Thread(target=self._drain, args=(process,), daemon=True)
            errors.start()
            process.stdout.readline()
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(dice.expovariate(1 / self._deaths.every) if self._deaths.every else 1)
                    break
                if not self._calm.is_set() and self._deaths.every:
                    self._log.note("service at any moment")
                    process.kill()
            errors.join()
            process.stdout.close()
            if process.returncode not in (-signal.SIGKILL, 0):
                self.unexpected.append(f"{self._folder.name} ended with {process.returncode}")

    def _drain(self, process: Process) -> None:
        with self._errors.open("a") as file, process.stderr:
            for line in process.stderr:
                file.write(line)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()

    def tracebacks(self) -> list[str]:
        """Return the last lines of the errors in its log that nobody expected."""
        lines = self._errors.read_text().splitlines() if self._errors.exists() else []
        return [line for line in lines if json_level(line) in ("error", "critical") or line.startswith("Traceback")]


def json_level(line: str) -> str:
    with suppress(ValueError, AttributeError):
        return str(json.loads(line).get("level", "")).lower()
    return ""


@dataclass
class Postgres(Keeper):
    """A server with all its processes."""

    server: Server
    log: KillLog
    every: float
    pause: float = 0.02
    starts: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        super().__init__()

    def environ(self, folder: Path) -> dict[str, str]:
        """Return what a service needs to kill it."""
        return {POSTMASTER: str(folder / "postmaster.pid")}

    def _run(self) -> None:
        dice = random.Random()
        while not self._ended.wait(self.pause):
            if not self._calm.is_set() and self.every and dice.random() < self.pause / self.every:
                self.log.note("database at any moment")
                with suppress(Exception):  # half of it may be dead already
                    self.server.kill()
            if not self.server.is_alive():
                self.server.start()
                self.starts += 1

    def _stop(self) -> None:
        return


def wait_until(found: Callable[[], bool], seconds: float, pause: float = 0.1) -> bool:
    """Return whether something comes about in time."""
    ends = time.monotonic() + seconds
    while not found():
        if time.monotonic() > ends:
            return False
        time.sleep(pause)
    return True
