"""Three processes on one database: two gateways, and a worker beside them. And single ones, to be killed."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psycopg
import pytest

from stentor.web.middleware import UNLIMITED_CALLS
from tests.conftest import Service, serving
from tests.processes.programs import Program

Start = Callable[..., Service]
COUNTED = re.compile(r"POST /api/v1/tasks(/.+/retry)?|GET /api/v1/tasks/[^/]+(/input)?")
"""What a worker's program sends that counts as anybody's: children, their retries, and replays."""


@dataclass
class Installation:
    """Gateways `one` and `other`, and a process that only works."""

    one: Service
    other: Service
    worker: Service


@contextmanager
def database(server: str) -> Iterator[str]:
    name = f"processes_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'create database "{name}"'.encode())
    head, _, query = server.partition("?")
    yield f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'drop database "{name}" with (force)'.encode())


@contextmanager
def starting(folder: Path, url: str, **common: str) -> Iterator[Start]:
    """Starts processes of one installation, each with a folder of its own: `start("gateway", SETTING="value")`.
    `common` are settings of all of them.
    """
    with serving(folder) as serve:
        count = 0

        def start(roles: str, **environ: str) -> Service:
            nonlocal count
            count += 1
            base = {"SERVICE_DATABASE_URL": url, "SERVICE_MEMORY": "0", "SERVICE_ROLES": roles}
            base["SERVICE_OUTBOUND_ALLOW"] = "127.0.0.1"
            return serve(data_dir=folder / f"process{count}", **(base | common | environ))

        yield start


@pytest.fixture
def start(tmp_path: Path, postgres_server: str) -> Iterator[Start]:
    """Starts processes on a database that nobody else has."""
    with database(postgres_server) as url, starting(tmp_path, url) as begin:
        yield begin


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Iterator[Installation]:
    """Not to be broken: all tests of a module share it."""
    folder = tmp_path_factory.mktemp("installation")
    with database(postgres_server) as url, starting(folder, url) as begin:
        yield Installation(begin("gateway"), begin("gateway"), begin("worker"))


@pytest.fixture
def program(
    serve_module: Callable[..., Service], running: list[Service], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Program]:
    if not running:
        running.append(serve_module())
    calls: set[str] = set()
    with running[0].client() as api:
        program = Program(running[0], api)
        send = program.worker._client._request

        def note(method: str, path: str, *rest: Any) -> Any:
            calls.add(f"{method} /api/v1{unquote(path.partition('?')[0])}")
            return send(method, path, *rest)

        monkeypatch.setattr(program.worker._client, "_request", note)
        yield program
    counted = [call for call in calls if not any(pattern.fullmatch(call) for pattern in (*UNLIMITED_CALLS, COUNTED))]
    assert counted == [], "what a worker calls does not count against the rate limit of its key"


@pytest.fixture(scope="module")
def running() -> list[Service]:
    """The service of this module, once it runs."""
    return []
