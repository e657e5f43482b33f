"""Schedules of gateways that share a database, and one of which is killed while it submits."""

from __future__ import annotations

import time

import pytest

from tests.databases import rows
from tests.patience import until
from tests.processes.conftest import Start
from tests.requirements import requirement

MINUTES = 60


@pytest.mark.fault
@requirement("schedules.once")
def test_each_time_has_one_task_when_a_gateway_is_killed(start: Start) -> None:
    one, other = start("gateway"), start("gateway")
    task = {"type": "echo", "input": "hello", "required_capabilities": ["echo"]}
    body = {"name": "s", "cron": "* * * * *", "missed": "all", "task": task}
    with one.client() as api:
        api.post("/api/v1/registry/agents", json={"name": "ann", "capabilities": ["echo"]}).raise_for_status()
        api.post("/api/v1/schedules", json=body).raise_for_status()
    first = (int(time.time()) // 60 - MINUTES) * 60_000_000
    rows(other.database, f"update schedules set next_at = {first} returning name")
    count = "select count(*) from schedule_runs"
    until(lambda: rows(other.database, count)[0][0] > MINUTES // 10)
    one.kill()
    until(lambda: rows(other.database, count)[0][0] > MINUTES)
    with other.client() as api:
        api.patch("/api/v1/schedules/s", json={"paused": True}).raise_for_status()
    due = [row[0] for row in rows(other.database, "select due_at from schedule_runs order by due_at")]
    assert due == [first + n * 60_000_000 for n in range(len(due))]
    tasks = rows(other.database, "select task_id from tasks order by task_id")
    assert tasks == rows(other.database, "select task_id from schedule_runs order by task_id")
