"""Services and a PostgreSQL server that are started again whenever they died, each by a thread of its own."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.kills.hooks import COMMITS, LOG, POSTMASTER
from tests.faults.kills.mortality import KillLog
from tests.faults.server import Server
from tests.forkserver import HOOK, Process
from tests.ports import free_port
from tests.service import KEYS

UNAVAILABLE = 3
"""The exit code of a service that cannot reach its database when it starts."""
PAUSE_SECONDS = 0.05
KEY = KEYS["ADMIN"].split(":")[0]
OFF = ("DASHBOARD", "VAULT", "VAULT_TLS", "NOTES", "MCP")


class Keeper:
    """Starts something again when it died, until it is ended."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._calm = threading.Event()
        self._calm.set()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def arm(self) -> None:
        """Let it die from now on."""
        self._calm.clear()

    def calm(self) -> None:
        """Let it die no more."""
        self._calm.set()

    def end(self) -> None:
        self._ended.set()
        self._stop()
        self._thread.join(60)

    def _run(self) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        raise NotImplementedError


class Gateway(Keeper):
    """A `stentor serve` on one port."""

    def __init__(self, name: str, folder: Path, log: KillLog, commits: int, environ: dict[str, str]) -> None:
        super().__init__()
        port = str(free_port())
        self.address = f"http://127.0.0.1:{port}"
        self.unexpected: list[str] = []
        """How it ended when nobody killed it."""
        self._folder, self._log, self._commits = folder / name, log, commits
        self._errors = folder / f"{name}.log"
        base = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SERVICE_GATEWAY_PORT": port, "SERVICE_MEMORY": "0"}
        base |= {f"SERVICE_{other}_PORT": "0" for other in OFF} | {f"SERVICE_API_KEY_{k}": v for k, v in KEYS.items()}
        base |= {"SERVICE_RATE_LIMIT_PER_MINUTE": "0", "SERVICE_LLM_FIND_OLLAMA": "0", "SERVICE_BUILTIN_AGENTS": "0"}
        base |= {"SERVICE_TASK_MAX_ATTEMPTS": "100", "SERVICE_LEASE_SECONDS": "3", "SERVICE_EMBEDDING_MODEL": "none"}
        self._environ = base | environ
        self._process: Process | None = None

    def arm(self) -> None:
        super().arm()
        self._stop()  # the next one is told when to die

    def calm(self) -> None:
        super().calm()
        self._stop()  # it was told when to die, and the next one is not

    def _run(self) -> None:
        hook = {HOOK: "tests.faults.kills.hooks", LOG: str(self._log.path), COMMITS: str(self._commits)}
        while not self._ended.is_set():
            environ = self._environ | ({} if self._calm.is_set() else hook)
            process = self._process = Process(["serve", "--json", "--data-dir", str(self._folder)], environ)
            errors = threading.Thread(target=self._drain, args=(process,), daemon=True)
            errors.start()
            process.stdout.readline()
            process.wait()
            errors.join()
            process.stdout.close()
            if process.returncode == UNAVAILABLE and POSTMASTER in self._environ:
                self._ended.wait(PAUSE_SECONDS)  # the database was dead
            elif process.returncode != -signal.SIGKILL:
                self.unexpected.append(f"{self._folder.name} ended with {process.returncode}")

    def _drain(self, process: Process) -> None:
        with self._errors.open("a") as file, process.stderr:
            for line in process.stderr:
                file.write(line)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()


class Postgres(Keeper):
    """A server with all its processes, which the services kill."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self.environ = {POSTMASTER: str(server.folder / "postmaster.pid")}

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_SECONDS):
            if not self._server.is_alive():
                self._server.start()

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
