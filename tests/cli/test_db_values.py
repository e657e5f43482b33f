"""Values of steps and sessions, deflated or not: they come through `stentor db copy` and an upgrade as they were."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from stentor.core import migrations
from stentor.core.db import Database
from stentor.core.db.driver import Driver
from stentor.core.db.sql import Sql
from stentor.testing import FixedClock
from tests.cli.populated import post, stop
from tests.cli.program import Program
from tests.cli.test_db_copy import copied
from tests.conftest import World, build_world, serving
from tests.core.test_migrations import bare, old, rows
from tests.databases import rows as read_rows
from tests.requirements import requirement

__all__ = ["bare"]  # a fixture
PROSE = "The quick brown fox jumps over the lazy dog, \U0001f98a and \\N and \u2028 stay. "
NOISE = random.Random(35)
VALUES: dict[str, tuple[str, Any]] = {
    "short": ("json", {"pages": 3}),
    "prose": ("json", PROSE * 20),
    "bytes": ("base64", base64.b64encode(bytes(range(200)) * 10).decode()),
    "10 kB": ("json", PROSE * 140),
    "10 kB of noise": ("base64", base64.b64encode(NOISE.randbytes(10_000)).decode()),
    "1 MB": ("json", [PROSE * 7, None, 1.5] * 1_800),
    "9.9 MB": ("json", "x" * 9_900_000),
}
"""By the key of the step; some are stored deflated, inline and beside the row, and some are not."""
DEFLATED = "select key, value, deflated from task_steps where deflated is not null order by key"
CONTENTS = "select hash, is_deflated, content from step_values order by hash"


def record(api: httpx.Client) -> str:
    """Record the values as steps of a task and in a session; return the task."""
    agent = post(api, "/registry/agents", name="ann", capabilities=["echo"])["agent_id"]
    task_id = str(post(api, "/tasks", type="echo", input=1, required_capabilities=["echo"])["task_id"])
    [claim] = post(api, f"/agents/{agent}/claims", wait_seconds=60)["tasks"]
    for key, (encoding, value) in VALUES.items():
        step = {"key": key, "name": key, "value": value, "encoding": encoding}
        post(api, f"/tasks/{task_id}/steps", epoch=claim["epoch"], **step)
    post(api, "/sessions", id="s")
    post(api, "/sessions/s/items", items=[{"value": PROSE * 20}, {"value": PROSE * 140}])
    return task_id


def read_back(api: httpx.Client, task_id: str) -> dict[str, tuple[str, Any]]:
    values: dict[str, tuple[str, Any]] = {}
    for step in api.get(f"/api/v1/tasks/{task_id}/steps").json()["steps"]:
        answer = api.get(f"/api/v1/tasks/{task_id}/steps/{quote(step['key'])}")
        assert answer.status_code == 200, answer.text[:300]
        values[step["key"]] = (answer.json()["encoding"], answer.json()["value"])
    return values


def stored(address: Path | str) -> list[list[tuple[Any, ...]]]:
    """The rows with values in a database, their bytes as they are stored."""
    found = [read_rows(address, DEFLATED), read_rows(address, CONTENTS)]
    return [[tuple(bytes(c) if isinstance(c, memoryview) else c for c in row) for row in table] for table in found]


@pytest.mark.slow
@pytest.mark.only("sqlite", reason="what is copied is named by the test")
@requirement("scale.copy-whole", "steps.values")
def test_deflated_values_go_to_postgresql_and_back_and_are_the_same(bare_url: str, tmp_path: Path) -> None:
    folder, home = tmp_path / "data", tmp_path / "home"
    program = Program(folder)
    with serving(tmp_path) as start:
        service = start(folder)
        with service.client() as api:
            task_id = record(api)
            items = api.get("/api/v1/sessions/s/items").json()["items"]
        stop(service)
        at_home = stored(folder / "stentor.db")
        assert [row[0] for row in at_home[0]] == ["bytes", "prose"]
        assert {row[1] for row in at_home[1]} == {0, 1}
        copied(program, f"sqlite:///{folder}/stentor.db", bare_url)
        assert stored(bare_url) == at_home
        service = start(folder, SERVICE_DATABASE_URL=bare_url)
        with service.client() as api:
            assert read_back(api, task_id) == VALUES
            assert api.get("/api/v1/sessions/s/items").json()["items"] == items
        stop(service)
        copied(program, bare_url, f"sqlite:///{home}/stentor.db")
        assert stored(home / "stentor.db") == at_home
        with start(home).client() as api:
            assert read_back(api, task_id) == VALUES
            assert api.get("/api/v1/sessions/s/items").json()["items"] == items


TASK = """insert into tasks (tenant, task_id, status, type, priority, created_at, queued_at, timeout_seconds, epoch,
    attempt_epoch, provenance_id, head_id, submitted_by, submitted_status, estimated_start, estimated_completion,
    body_hash, required_capabilities, metadata, input, completion_time, outcome_class)
    values ('default', :task_id, 'failed', 'echo', 1, 1, 1, 300, 1, 0, :task_id, :task_id, 'ADMIN', 'queued', 1, 1, '',
    '[]', '{}', '1', 2, 'agent_failure')"""
STEP = """insert into task_steps (tenant, task_id, key, event_id, name, kind, state, epoch, encoding, value, value_hash,
    size, started_at, ended_at)
    values ('default', :task_id, :key, :event_id, :key, 'step', 'completed', 1, :encoding, :value, :hash, :size, 1,
    2)"""
CONTENT = "insert into step_values (tenant, hash, content) values ('default', :hash, :content)"
OLD_TASK = "01890000-0000-7000-8000-000000000001"


def write_as_before(driver: Driver) -> None:
    """Write the values as version 0034 stored them: inline up to 4,096 bytes, else by their hash, never deflated."""
    connection = driver.writer()
    connection.begin()
    connection.run(Sql(TASK), {"task_id": OLD_TASK})
    for number, (key, (encoding, value)) in enumerate(VALUES.items()):
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        content = text.encode() if encoding == "json" else base64.b64decode(value)
        digest = hashlib.sha256(content).hexdigest() if len(content) > 4_096 else None
        if digest is not None:
            connection.run(Sql(CONTENT), {"hash": digest, "content": content})
        step = {"task_id": OLD_TASK, "key": key, "event_id": f"e{number}", "encoding": encoding, "size": len(content)}
        connection.run(Sql(STEP), step | {"value": text if digest is None else None, "hash": digest})
    connection.commit()
    connection.close()


async def read_over_http(world: World, task_id: str) -> dict[str, tuple[str, Any]]:
    values: dict[str, tuple[str, Any]] = {}
    for key in VALUES:
        answer = await world.admin.get(f"/api/v1/tasks/{task_id}/steps/{quote(key)}")
        assert answer.status_code == 200, answer.text[:300]
        values[key] = (answer.json()["encoding"], answer.json()["value"])
    return values


@requirement("scale.upgrade-keeps-rows", "steps.values")
async def test_values_from_before_they_were_deflated_are_read_after_the_upgrade(bare: Driver, tmp_path: Path) -> None:
    old(bare, "0034")
    write_as_before(bare)
    assert migrations.upgrade(bare, notify=lambda text: None).applied[0] == "0035"
    db = Database(bare)
    world = await build_world(db, FixedClock(), tmp_path)
    try:
        assert await read_over_http(world, OLD_TASK) == VALUES
        # The same contents, written now: those that are stored by their hash stay as they are, and serve both.
        agent = await world.register()
        task_id = await world.submit()
        epoch = (await world.claim(agent))["epoch"]
        for key, (encoding, value) in VALUES.items():
            step = {"epoch": epoch, "key": key, "name": key, "value": value, "encoding": encoding}
            assert (await world.admin.post(f"/api/v1/tasks/{task_id}/steps", json=step)).status_code == 200
        assert await read_over_http(world, task_id) == await read_over_http(world, OLD_TASK) == VALUES
        counts = "select count(*), sum(is_deflated) from step_values"
        assert [tuple(map(int, map(str, row))) for row in rows(bare, counts)] == [(4, 0)]
    finally:
        for client in world.clients.values():
            await client.aclose()
        await world.kernel.stop()
        db.close()
