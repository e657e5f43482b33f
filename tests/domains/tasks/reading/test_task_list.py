"""The list of tasks: filters, pages and totals, which are kept as counts and must agree with the rows."""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from stentor.core.clock import HOUR
from stentor.core.db import Sql
from stentor.domains.tasks.model import TASK_STATUSES
from stentor.domains.tasks.reading import list_queries, own_list_queries
from stentor.domains.tasks.reading.list_model import TaskFilter
from tests.conftest import World
from tests.databases import Databases
from tests.requirements import requirement

PATH = "/api/v1/tasks"


async def page(world: World, **params: Any) -> dict[str, Any]:
    answer = await world.admin.get(PATH, params=params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


LEASE = 3_600
"""Seconds, the most there is."""


async def keep(world: World, held: list[dict[str, Any]]) -> None:
    """Or the reconciler, which keeps real time, would take them back while the clock goes on by hours."""
    for claim in held:
        body = {"epoch": claim["epoch"], "lease_seconds": LEASE}
        assert (await world.admin.post(f"{PATH}/{claim['task_id']}/heartbeat", json=body)).status_code == 200


async def fill(world: World, count: int = 40) -> list[dict[str, Any]]:
    """Tasks over many hours, in many states, of two agents; answers them newest first."""
    agents = [await world.register(f"n{i}", capabilities=[f"c{i}"]) for i in range(2)]
    made, held = [], []
    for i in range(count):
        agent = agents[i % 2]
        # The clock goes on by hours: none of them may run out of its time meanwhile.
        task_id = await world.submit(
            required_capabilities=[f"c{i % 2}"], metadata={"priority": "high"}, timeout_seconds=86_400
        )
        made.append(task_id)
        if i % 5 == 1:
            await world.admin.post(f"{PATH}/{task_id}/cancel")
        elif i % 5 == 2:
            claim = await world.claim(agent)
            await world.admin.post(f"{PATH}/{claim['task_id']}/complete", json={"epoch": claim["epoch"], "result": 1})
        elif i % 5 == 3:
            held.append(await world.claim(agent, lease_seconds=LEASE))
        elif i % 5 == 4:
            await keep(world, held)
        world.clock.advance(seconds=600)
    return [await world.task(task_id) for task_id in reversed(made)]


@requirement("tasks.list-fields", "tasks.list-filters")
async def test_the_list_has_every_task_newest_first(world: World) -> None:
    tasks = await fill(world, 12)
    listed = await page(world)
    assert [row["task_id"] for row in listed["tasks"]] == [task["task_id"] for task in tasks]
    assert (listed["total"], listed["limit"], listed["offset"]) == (12, 100, 0)
    assert set(listed["tasks"][0]) == {
        *("task_id", "title", "type", "status", "assigned_agent", "agent_name"),
        *("created_at", "completed_at", "duration_ms", "total_duration_ms", "attempts"),
    }
    for row, task in zip(listed["tasks"], tasks, strict=True):
        assert (row["status"], row["completed_at"]) == (task["status"], task["completion_time"])


@requirement("tasks.list-filters", "tasks.list-fields")
async def test_every_filter_narrows_the_rows_and_the_total_alike(world: World) -> None:
    tasks = await fill(world)
    agents = sorted({task["assigned_agent"] for task in tasks})
    moments = [tasks[i]["created_at"] for i in (0, 3, 4, 17, 39)]
    for status in (None, *TASK_STATUSES):
        for agent in (None, *agents, "nobody"):
            for after in (None, *moments, "2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z"):
                wanted = [
                    task["task_id"]
                    for task in tasks
                    if (status is None or task["status"] == status)
                    and (agent is None or task["assigned_agent"] == agent)
                    and (after is None or task["created_at"] > after)
                ]
                given = {"status": status, "agent_id": agent, "created_after": after}
                found = await page(world, **{k: v for k, v in given.items() if v is not None})
                assert [row["task_id"] for row in found["tasks"]] == wanted, given
                assert found["total"] == len(wanted), given


@requirement("tasks.list-more-filters", "tasks.list-filters")
async def test_types_and_submitters_narrow_the_rows_and_the_total_alike(world: World) -> None:
    tasks = []
    for number in range(12):
        client, type_ = world.clients[("ADMIN", "WRITER")[number % 2]], ("a", "b", "c")[number % 3]
        body = {"type": type_, "input": "x", "required_capabilities": ["echo"]}
        if number == 0:
            await world.register("ann")
        task_id = (await client.post(PATH, json=body)).json()["task_id"]
        if number % 4 == 0:
            await world.admin.post(f"{PATH}/{task_id}/cancel")
        tasks.insert(0, {"submitted_by": ("admin", "writer")[number % 2], **(await world.task(task_id))})
    for status, type_, submitter in product(
        (None, "queued", "cancelled", "waiting"), (None, "a", "b", "z"), (None, "admin", "writer", "nobody")
    ):
        given = {"status": status, "type": type_, "submitted_by": submitter}
        given = {name: value for name, value in given.items() if value is not None}
        wanted = [task["task_id"] for task in tasks if given.items() <= task.items()]
        found = await page(world, **given)
        assert [row["task_id"] for row in found["tasks"]] == wanted, given
        assert (found["total"], found["total_is_exact"]) == (len(wanted), True), given


@requirement("tasks.list-more-filters")
async def test_a_list_uses_the_index_of_the_condition_that_the_fewest_tasks_fulfil(world: World) -> None:
    agent = await world.register("ann")
    for number in range(5):
        task_id = await world.submit(type="rare" if number == 0 else "common")
        if number == 1:
            await world.admin.post(f"{PATH}/{task_id}/cancel")

    async def rarest(**conditions: Any) -> str:
        wanted = TaskFilter(**conditions)
        names, params = list_queries.condition_names(wanted), list_queries.filter_params("default", wanted)
        return await world.kernel.infra.db.read(lambda tx: list_queries.find_rarest(tx, names, params))

    assert await rarest(status="cancelled", type="common", submitted_by="admin") == "status"
    assert await rarest(status="waiting", submitted_by="admin", agent_id=agent) == "agent_id"
    assert await rarest(status="queued", type="rare", agent_id=agent) == "type"
    assert await rarest(status="queued", type="common", session="none") == "session"
    assert await rarest(created_after=1) == ""


@requirement("tasks.list-more-filters")
@pytest.mark.parametrize(
    ("sql", "index"),
    [
        (list_queries.page_sql("status", "status", "type", "submitted_by"), "tasks_by_status"),
        (list_queries.page_sql("type", "status", "type", "agent_id"), "tasks_by_type"),
        (list_queries.page_sql("agent_id", "status", "agent_id", "type"), "tasks_by_agent_status"),
        (list_queries.count_some_sql("status", "status", "type"), "tasks_by_status"),
        (list_queries.count_some_sql("type", "type"), "COVERING INDEX tasks_by_type"),
        (list_queries._LIST_BY_REFERENCE, "sqlite_autoindex_tasks_1 (tenant=? AND task_id=?)"),
    ],
)
def test_a_list_reads_no_more_than_its_index_has(sql: Sql, index: str, tmp_path: Path, databases: Databases) -> None:
    with sqlite3.connect(databases.sqlite(tmp_path / "stentor.db")) as db:
        plan = str(db.execute(f"explain query plan {sql.text}", defaultdict(str)).fetchall())
    assert index in plan, plan
    assert "USING INDEX tasks_by_time" not in plan, plan


@requirement("tasks.list-more-filters", "tasks.list-fields")
async def test_a_total_that_is_not_exact_is_no_less_than_the_tasks_of_the_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Statements with another limit, which no other test may get.
    monkeypatch.setattr(list_queries, "_statements", {})
    monkeypatch.setattr(list_queries, "MAX_TOTAL", 4)
    await world.register()
    for number in range(7):
        await world.submit(type="a")
        if number < 3:
            assert (await page(world, type="a"))["total_is_exact"]
    found = await page(world, type="a", submitted_by="admin", limit=5, offset=1)
    assert (len(found["tasks"]), found["total"], found["total_is_exact"]) == (5, 7, False)


@requirement("tasks.agents-see-their-own", "tasks.list-more-filters")
@pytest.mark.parametrize("sizes", [(1, 8, 64), (1,)], ids=["agent by agent", "more agents than one statement has"])
async def test_every_filter_lists_and_counts_what_a_key_may_see(
    world: World, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    monkeypatch.setattr(own_list_queries, "_AGENTS_PER_STATEMENT", sizes)
    agents = [await world.register(f"n{n}", key_name="bob" if n < 2 else "other") for n in range(3)]
    tasks: list[dict[str, Any]] = []
    for number in range(24):
        by, type_, agent = ("ADMIN", "BOB", "WRITER")[number % 3], "ab"[number % 2], agents[number // 3 % 3]
        body = {"type": type_, "input": "x", "required_capabilities": ["echo"], "agent_preference": agent}
        task_id = (await world.clients[by].post(PATH, json=body)).json()["task_id"]
        if number % 5 == 0:
            await world.admin.post(f"{PATH}/{task_id}/cancel")
        tasks.insert(0, {"submitted_by": by.lower(), **(await world.task(task_id))})
        if number % 4:
            world.clock.advance(seconds=600)
    # Of one moment are the tasks in the order of their ids.
    tasks.sort(key=lambda task: (task["created_at"], task["task_id"]), reverse=True)
    visible = [task for task in tasks if task["submitted_by"] == "bob" or task["assigned_agent"] in agents[:2]]
    for status, agent, type_, submitter, after in product(
        (None, "queued", "cancelled"),
        (None, agents[0], agents[2], "nobody"),
        (None, "a", "z"),
        (None, "admin", "bob"),
        (None, tasks[9]["created_at"]),
    ):
        given = {"status": status, "assigned_agent": agent, "type": type_, "submitted_by": submitter}
        given = {name: value for name, value in given.items() if value is not None}
        wanted = [
            task["task_id"]
            for task in visible
            if given.items() <= task.items() and (after is None or task["created_at"] > after)
        ]
        params = {"agent_id" if name == "assigned_agent" else name: value for name, value in given.items()}
        params |= {} if after is None else {"created_after": after}
        answer = await world.clients["BOB"].get(PATH, params=params | {"limit": "5"})
        seen, found = [row["task_id"] for row in answer.json()["tasks"]], answer.json()
        assert (found["total"], found["total_is_exact"]) == (len(wanted), True), params
        if found["next_cursor"]:
            params |= {"cursor": found["next_cursor"]}
            answer = await world.clients["BOB"].get(PATH, params=params)
            seen += [row["task_id"] for row in answer.json()["tasks"]]
        assert seen == wanted, params


@requirement("tasks.agents-see-their-own", "tasks.list-fields")
async def test_a_key_with_many_tasks_learns_that_there_are_at_least_so_many(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_queries, "_statements", {})
    monkeypatch.setattr(list_queries, "MAX_TOTAL", 4)
    await world.register(key_name="bob")
    bob = world.clients["BOB"]
    for number in range(12):
        body = {"type": "b" if number % 2 else "a", "input": "x", "required_capabilities": ["echo"]}
        await (bob if number < 3 else world.admin).post(PATH, json=body)

    async def totals(**params: str) -> tuple[int, bool]:
        found = (await bob.get(PATH, params={**params, "limit": "1"})).json()
        return found["total"], found["total_is_exact"]

    # Of its agents there are counts, however many tasks they have, but not by type.
    assert await totals() == (12, True)
    assert await totals(type="a") == (4, False)
    await bob.post(PATH, json=body)
    assert await totals() == (13, False)


@requirement("tasks.list-next-cursor", "tasks.list-fields")
@pytest.mark.parametrize("filters", [{}, {"status": "queued"}])
async def test_following_the_cursor_yields_every_task_once(world: World, filters: dict[str, str]) -> None:
    tasks = [task for task in await fill(world, 24) if not filters or task["status"] == "queued"]
    seen: list[str] = []
    url: str | None = str(world.admin.build_request("GET", PATH, params={**filters, "limit": 5}).url)
    while url is not None:
        answer = await world.admin.get(url)
        body = answer.json()
        assert body["total"] == len(tasks)
        seen += [row["task_id"] for row in body["tasks"]]
        url = answer.links["next"]["url"] if "next" in answer.links else None
        assert (url is None) is (body["next_cursor"] is None)
    assert seen == [task["task_id"] for task in tasks]


@requirement("tasks.list-next-cursor")
async def test_a_cursor_is_not_disturbed_by_newer_tasks_or_equal_times(world: World) -> None:
    await world.register()
    made = [await world.submit() for _ in range(9)]  # all at the same moment
    first = await page(world, limit=4)
    await world.submit()
    rest = await page(world, limit=5, cursor=first["next_cursor"])
    seen = [row["task_id"] for row in first["tasks"] + rest["tasks"]]
    assert sorted(seen) == sorted(made)


@requirement("tasks.list-next-cursor")
async def test_the_last_page_has_no_successor_full_or_not(world: World) -> None:
    await world.register()
    for _ in range(4):
        await world.submit()
    assert (await page(world, limit=5))["next_cursor"] is None
    assert (await page(world, limit=4))["next_cursor"] is None
    first = await page(world, limit=3)
    assert (await page(world, limit=3, cursor=first["next_cursor"]))["next_cursor"] is None


async def test_an_offset_skips_rows(world: World) -> None:
    await world.register()
    made = [await world.submit() for _ in range(5)]
    listed = await page(world, offset=2, limit=2)
    assert [row["task_id"] for row in listed["tasks"]] == sorted(made, reverse=True)[2:4]
    assert (listed["total"], listed["offset"]) == (5, 2)


@requirement("tasks.list-limit")
@pytest.mark.parametrize("limit", ["0", "-1", "1001", "ten", "1.5", ""])
async def test_a_limit_out_of_range_is_refused(world: World, limit: str) -> None:
    answer = await world.admin.get(PATH, params={"limit": limit})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@requirement("tasks.list-limit")
async def test_limits_up_to_a_thousand_are_taken(world: World) -> None:
    for limit in (1, 1000):
        assert (await page(world, limit=limit))["limit"] == limit


@pytest.mark.parametrize(
    "params",
    [
        {"status": "pending"},
        {"created_after": "yesterday"},
        {"created_after": "2026-01-01T00:00:00"},
        {"created_after": "0001-01-01T00:00:00+14:00"},
        {"cursor": "x"},
    ],
    ids=str,
)
async def test_filters_that_cannot_be_read_are_refused(world: World, params: dict[str, str]) -> None:
    answer = await world.admin.get(PATH, params=params)
    assert answer.status_code == 400
    assert "Value error" not in answer.text, "words of a library"
    assert "body" not in answer.text


@requirement("tasks.list-fields")
async def test_totals_agree_with_the_rows_after_every_kind_of_move(world: World) -> None:
    agent = await world.register()
    human = await world.register("hugo", capabilities=["think"], trust_tier="human")
    failed = await world.do(agent, ok=False)
    await world.admin.post(f"{PATH}/{failed}/retry")
    for verb in ("approve", "reject", "cancel"):
        task_id = await world.submit(required_capabilities=["think"])
        await world.admin.post(f"{PATH}/{task_id}/{verb}")
    await world.claim(agent)
    world.clock.advance(seconds=HOUR // 1_000_000)
    await world.kernel.tasks.reconciler.tick(0)
    await world.submit()
    await world.admin.post(f"/api/v1/registry/agents/{human}/suspend", json={"reason": "ill"})
    await world.admin.post(PATH, json={"type": "x", "input": 1, "required_capabilities": ["think"]})
    rows = (await page(world))["tasks"]
    for status, count in Counter(row["status"] for row in rows).items():
        assert (await page(world, status=status, limit=1))["total"] == count
    for who in (agent, human):
        assert (await page(world, agent_id=who))["total"] == sum(row["assigned_agent"] == who for row in rows)
    assert (await page(world, limit=1))["total"] == len(rows)


async def test_no_other_tenants_tasks_are_listed(world: World) -> None:
    await world.register()
    await world.submit()
    assert (await world.clients["OTHER"].get(PATH)).json()["total"] == 0
