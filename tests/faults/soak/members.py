"""The processes of an installation: killed, stopped, and started again by a supervisor when they are gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.conftest import KEYS
from tests.ports import free_port

KEY = KEYS["ADMIN"].split(":")[0]
LEASE_SECONDS = 3
EVERY_SECONDS = 0.3


@dataclass
class Member:
    """One process; what it says goes into `log`."""

    name: str
    command: list[str]
    environ: dict[str, str]
    log: Path
    address: str = ""
    exits: list[int] = field(default_factory=list)
    """How it ended by itself."""
    down: bool = False
    """Not to be started by the supervisor."""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env=self.environ)
        self.down = False

    def pids(self) -> list[int]:
        return [] if self.process is None else [self.process.pid]

    def kill(self) -> None:
        self.down = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def leave(self) -> None:
        """SIGTERM; one that does not leave within its time is killed, as any supervisor does it."""
        self.down = True
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.exits.append(-signal.SIGKILL)
                self.kill()

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def care(self) -> None:
        """Start it again when it ended by itself."""
        if not self.down and self.process is not None and (code := self.process.poll()) is not None:
            self.exits.append(code)
            self.start()

    def ready(self) -> bool:
        with suppress(httpx.TransportError):
            return not self.address or httpx.get(f"{self.address}/api/v1/health/ready", timeout=2).status_code == 200
        return False


class Supervisor:
    """Looks after the members for as long as its block runs, and kills them at the end."""

    def __init__(self, members: list[Member]) -> None:
        self.members = members
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)
        for member in self.members:
            member.signal(signal.SIGCONT)
            member.kill()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_SECONDS):
            for member in self.members:
                member.care()


def service(name: str, folder: Path, path: str, **environ: str) -> Member:
    """A `stentor serve` that has the same port whenever it is started; `path` is the PATH of its programs."""
    port = str(free_port())
    keys = {f"SERVICE_API_KEY_{key}": value for key, value in KEYS.items()}
    ports = {f"SERVICE_{other}_PORT": "0" for other in ("DASHBOARD", "VAULT", "VAULT_TLS", "NOTES", "MCP")}
    base = {"PATH": path, "HOME": str(folder), "SERVICE_GATEWAY_PORT": port, "SERVICE_MEMORY": "0"}
    base |= {"SERVICE_RATE_LIMIT_PER_MINUTE": "0", "SERVICE_LLM_FIND_OLLAMA": "0", "SERVICE_DRAIN_SECONDS": "2"}
    base |= {"SERVICE_LEASE_SECONDS": str(LEASE_SECONDS), "SERVICE_TASK_MAX_ATTEMPTS": "100"}
    command = [sys.executable, "-m", "stentor", "serve", "--json", "--data-dir", str(folder / name)]
    address = f"http://127.0.0.1:{port}"
    return Member(name, command, {**base, **ports, **keys, **environ}, folder / f"{name}.log", address)


def worker(name: str, folder: Path, path: str, address: str) -> Member:
    """A worker with the SDK; what it was answered goes into `<name>.jsonl`."""
    command = [sys.executable, "-m", "tests.faults.soak.worker", address, KEY, str(folder / f"{name}.jsonl")]
    return Member(name, command, {"PATH": path}, folder / f"{name}.log")
