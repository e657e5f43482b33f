"""Processes whose transactions go through a pooler, each of which may meet another server connection."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Service
from tests.patience import until
from tests.processes.calls import Stream, claim, ended, known, post, register, submit
from tests.processes.conftest import database, starting
from tests.processes.pooler import POOL_SIZE, pooling
from tests.requirements import requirement

pytestmark = pytest.mark.together("pooler")
SESSIONS = 2
"""Of each process: one holds its locks, one listens."""


@pytest.fixture(scope="module")
def direct(postgres_server: str) -> Iterator[str]:
    with database(postgres_server) as url:
        yield url


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, direct: str) -> Iterator[list[Service]]:
    """Two gateways and a worker."""
    folder = tmp_path_factory.mktemp("pooler")
    with pooling(direct) as pooled, starting(folder, pooled) as start:
        settings = {"SERVICE_DATABASE_SESSION_URL": direct, "SERVICE_VAULT_DIR": str(folder / "vault")}
        settings |= {"SERVICE_MEMORY": "1", "SERVICE_EMBEDDING_MODEL": "none"}
        yield [start(roles, **settings) for roles in ("gateway", "gateway", "worker")]


@requirement("scale.pooler")
def test_tasks_are_done_and_followed_through_a_pooler_with_fewer_connections_than_processes_use(
    three: list[Service], direct: str
) -> None:
    one, other, _ = three
    for task_id in [submit(service) for service in (one, other) for _ in range(20)]:
        assert ended(other, task_id)["attempts"] == 1
    agent_id = register(one, "pooled")
    known(other, agent_id)
    task_id = submit(one, type="x", required_capabilities=["pooled"])
    taken = claim(other, agent_id)
    stream = Stream(one, task_id)
    post(other, f"/api/v1/tasks/{task_id}/tokens", epoch=taken["epoch"], tokens=["a", "b"])
    post(other, f"/api/v1/tasks/{task_id}/complete", epoch=taken["epoch"], result="done")
    stream.join(200)
    assert stream.steps[-1][1]["result"] == "done"
    with psycopg.connect(direct) as admin:
        text = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        row = admin.execute(text + " and backend_type = 'client backend'").fetchone()
    assert row is not None
    assert row[0] <= POOL_SIZE + SESSIONS * len(three)


@requirement("scale.pooler")
def test_notes_are_written_and_found_through_a_pooler(three: list[Service]) -> None:
    one, other, _ = three
    note = {"path": "pooler/one.md", "content": "A walrus sleeps on the ice."}
    post(one, "/api/v1/memory/write", operation="write", document=note)
    until(lambda: post(other, "/api/v1/memory/search/keyword", terms=["walrus"])["matches"])


@requirement("scale.pooler")
def test_a_copy_is_refused_while_processes_serve_through_a_pooler(
    three: list[Service], direct: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "stentor", "db", "copy", direct, f"sqlite:///{tmp_path}/copy.db"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1100, check=False)
    assert ran.returncode != 0
    assert "in use" in ran.stderr, ran.stderr
    assert three
