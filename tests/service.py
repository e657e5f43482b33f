"""A real `stentor serve` in a subprocess, and the keys that tests use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.forkserver import Process

KEYS = {
    "ADMIN": "admin-key-7c1e:admin:read,write,delete,admin",
    "READER": "reader-key-7c1e:admin:read",
    "WRITER": "writer-key-7c1e:admin:read,write",
    "BOB": "bob-key-7c1e:agent:read,write",
    "BOSS": "boss-key-7c1e:agent:read,write,delete,admin",
    "PROPOSER": "proposer-key-7c1e:agent:read,write,propose",
    "SECOND": "second-key-7c1e:admin:read,write,delete,admin",
    "OTHER": "other-key-7c1e:admin:read,write,delete,admin:other",
}
ADMIN = {"X-API-Key": "admin-key-7c1e"}
SHORT_LEASE = {"SERVICE_LEASE_SECONDS": "3", "SERVICE_WEBHOOK_TIMEOUT_SECONDS": "2"}
"""For tests that kill a service: on PostgreSQL, where others may live, its work comes back when its lease ends."""


@dataclass
class Service:
    """A `stentor serve` of its own, on free ports; `database` is the file or the address of its database."""

    process: Process | subprocess.Popen[str]
    address: str
    data_dir: Path
    database: Path | str
    environ: dict[str, str]
    ready: dict[str, Any]
    key: str = "admin-key-7c1e"

    @property
    def state(self) -> dict[str, str]:
        """What another program needs in its environment, beside the data folder, to find the database."""
        return {} if isinstance(self.database, Path) else {"SERVICE_DATABASE_URL": self.database}

    def client(self, key: str | None = None) -> httpx.Client:
        return httpx.Client(base_url=self.address, headers={"X-API-Key": key or self.key}, timeout=200)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def in_folder(data_dir: Path) -> Path:
    return data_dir / "stentor.db"


@contextmanager
def serving(tmp_path: Path, store: Callable[[Path], Path | str] = in_folder) -> Iterator[Callable[..., Service]]:
    """A function that starts services, each stopped at the end; see `serve`. `store` has the database of a data folder:
    the file in it, or an address. `under` is a command that runs another one: the interpreter then starts anew,
    instead of being forked.
    """
    running: list[Service] = []

    def start(data_dir: Path | None = None, under: Sequence[str] = (), **environ: str) -> Service:
        folder = data_dir or tmp_path / "data"
        database = environ.get("SERVICE_DATABASE_URL") or store(folder)
        state = {} if isinstance(database, Path) else {"SERVICE_DATABASE_URL": database}
        keys = {f"SERVICE_API_KEY_{name}": value for name, value in KEYS.items()}
        base = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SERVICE_RATE_LIMIT_PER_MINUTE": "0"}
        base |= {"SERVICE_LLM_FIND_OLLAMA": "0", "SERVICE_EMBEDDING_MODEL": "none"}
        base |= {f"SERVICE_{name}_PORT": "0" for name in ("GATEWAY", "DASHBOARD", "VAULT", "VAULT_TLS", "NOTES", "MCP")}
        env = {**base, **keys, **state, **environ}
        words = ["serve", "--json", "--data-dir", str(folder)]
        process = _interpreted([*under, sys.executable, "-m", "stentor", *words], env) if under else Process(words, env)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            assert process.stderr is not None
            raise AssertionError(f"the service did not start: {process.stderr.read()}")
        ready = json.loads(line)
        service = Service(process, ready["gateway"], folder, database, env, ready)
        running.append(service)
        return service

    yield start
    for service in running:
        if service.process.poll() is None:
            service.process.terminate()
            try:
                service.process.wait(60)
            except subprocess.TimeoutExpired:
                service.process.kill()
                service.process.wait()
        for stream in (service.process.stdout, service.process.stderr):
            if stream is not None:
                stream.close()


def _interpreted(command: Sequence[str], env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
