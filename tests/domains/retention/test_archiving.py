"""Which tasks leave the database, what is in their archive, and what the API says of them afterwards."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

import pytest

from stentor.core.db import Sql
from stentor.core.errors import StartRefused
from stentor.domains.steps.wakeups import WaitScheduler
from tests.conftest import MakeWorld, World
from tests.domains.retention.archives import OF_TASKS, archive, archiver, audit, count, select, sign
from tests.requirements import requirement

DAYS = 30


async def call(world: World, method: str, path: str, status: int = 200, key: str = "ADMIN", **more: Any) -> Any:
    answer = await world.clients[key].request(method, f"/api/v1{path}", **more)
    assert answer.status_code == status, answer.text
    return answer.json()


async def run(world: World, sql: str, **params: Any) -> None:
    await world.kernel.infra.db.write(lambda tx: tx.run(Sql(sql), **params))


@requirement("retention.archives")
async def test_an_ended_task_moves_with_all_its_rows_into_files_that_duckdb_reads(world: World) -> None:
    agent = await world.register()
    long = "x" * 20_000
    task = await world.submit(input={"text": "Größe"}, metadata={"priority": "high"})
    claim = await world.claim(agent)
    for key, value in {"short": [1.5, None], "long": long}.items():
        step = {"epoch": claim["epoch"], "key": key, "name": key, "value": value}
        await call(world, "POST", f"/tasks/{task}/steps", json=step)
    await call(world, "POST", f"/tasks/{task}/complete", json={"epoch": claim["epoch"], "result": {"words": 3}})
    await call(world, "POST", f"/tasks/{task}/grade", json={"grade": 0.5, "comment": "fine"})
    await run(
        world,
        """insert into llm_calls (call_id, tenant, key_name, task_id, operation, provider, model, outcome, input_tokens,
        output_tokens, estimated, cost, latency_ms, happened_at, team) values ('c1', 'default', 'k', :task, 'chat', 'p',
        'm', 'ok', 7, 3, 0, 900, 12, 1, 'research')""",
        task=task,
    )
    events = await world.events(task)
    result = await archive(world)
    assert (result.tasks, result.archives, result.skipped) == (1, 1, 0)
    assert [await count(world, table) for table in OF_TASKS if table != "events"] == [0] * 5
    assert await count(world, "step_values") == 0, "the long value of a step has no owner any more"
    assert select(world, "select task_id, status, priority, input->>'text', result->>'words' from {tasks}") == [
        (task, "completed", 1, "Größe", "3")
    ]
    assert [row[0] for row in select(world, "select event_id from {events} order by number")] == [
        event["event_id"] for event in events
    ]
    assert [json.loads(row[0]) for row in select(world, "select value from {steps} order by event_id")] == [
        [1.5, None],
        long,
    ]
    assert select(world, "select grade, comment from {grades}") == [(0.5, "fine")]
    assert select(world, "select model, cost, input_tokens, team from {model_calls}") == [("m", 900, 7, "research")]
    assert audit(world).is_intact


@requirement("retention.archived-task-is-gone")
async def test_an_archived_task_is_410_everywhere_and_in_no_list(world: World) -> None:
    agent = await world.register()
    task = await world.do(agent)
    await world.submit(id="kept")
    await archive(world)
    for method, path in (
        ("GET", ""),
        ("GET", "/activity"),
        ("GET", "/stream"),
        ("GET", "/steps"),
        ("POST", "/retry"),
        ("POST", "/cancel"),
        ("GET", "/grade"),
    ):
        error = (await call(world, method, f"/tasks/{task}{path}", 410))["error"]
        assert error["code"] == "TASK_ARCHIVED", path
        assert error["details"]["archive"] in error["message"]
    listed = await call(world, "GET", "/tasks")
    assert ([row["task_id"] for row in listed["tasks"]], listed["total"]) == (["kept"], 1)
    assert (await call(world, "GET", "/tasks?status=completed"))["total"] == 0
    await call(world, "GET", f"/tasks/{task}", 404, key="OTHER")


@requirement("retention.archived-id")
async def test_the_id_of_an_archived_task_is_not_used_again(world: World) -> None:
    agent = await world.register()
    body = {"id": "mine", "type": "echo", "input": "hello", "required_capabilities": ["echo"]}
    await call(world, "POST", "/tasks", 202, json=body)
    claim = await world.claim(agent)
    await call(world, "POST", "/tasks/mine/complete", json={"epoch": claim["epoch"], "result": 1})
    await archive(world)
    assert "archived" in (await call(world, "POST", "/tasks", 409, json=body))["error"]["message"]
    later = {**body, "id": "later", "after": ["mine"]}
    assert "archived" in (await call(world, "POST", "/tasks", 400, json=later))["error"]["message"]


@requirement("retention.what-stays")
async def test_what_is_not_over_or_still_needed_stays(world: World) -> None:
    agent = await world.register()
    done = await world.do(agent)
    running = await world.submit()
    held = await world.submit()
    await run(world, "update tasks set learning_pending = 1 where task_id = :task", task=done)
    # A program began an effect, and was lost before it said whether it happened.
    claims = {}
    for _ in range(2):
        claim = await world.claim(agent)
        claims[claim["task_id"]] = claim["epoch"]
    assert claims.keys() == {running, held}
    await call(world, "POST", f"/tasks/{held}/effects", json={"epoch": claims[held], "key": "pay", "name": "pay"})
    await call(world, "POST", f"/tasks/{held}/fail", json={"epoch": claims[held], "error": {"message": "lost"}})
    assert (await archive(world)).tasks == 0
    await run(world, "update tasks set learning_pending = 0 where task_id = :task", task=done)
    assert (await archive(world)).tasks == 1
    assert [(await world.task(task))["status"] for task in (running, held)] == ["executing", "failed"]


@requirement("retention.what-stays")
async def test_a_task_that_another_one_waits_for_stays(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait_forever(_: object) -> None:
        await asyncio.Event().wait()

    # It would end a wait for a task that has ended.
    monkeypatch.setattr(WaitScheduler, "run", wait_forever)
    world = await make_world()
    agent = await world.register()
    awaited = await world.do(agent)
    waiting = await world.submit(after=[await world.submit()])
    await run(world, "update task_steps set reference = :awaited where task_id = :task", awaited=awaited, task=waiting)
    assert (await archive(world)).tasks == 0
    await run(world, "update task_steps set reference = 'another' where task_id = :task", task=waiting)
    assert (await archive(world)).tasks == 1
    await call(world, "GET", f"/tasks/{awaited}", 410)


@requirement("retention.what-stays")
async def test_a_parent_leaves_after_its_subtasks(world: World) -> None:
    agent = await world.register()
    parent = await world.submit()
    child = await world.submit(metadata={"parent_task_id": parent})
    claims = {}
    for _ in range(2):
        claim = await world.claim(agent)
        claims[claim["task_id"]] = {"epoch": claim["epoch"], "result": 1}
    await call(world, "POST", f"/tasks/{parent}/complete", json=claims[parent])
    assert (await archive(world)).tasks == 0, "its subtask is being executed"
    await call(world, "POST", f"/tasks/{child}/complete", json=claims[child])
    result = await archive(world)
    assert (result.tasks, result.archives) == (2, 2), "one pass for each level of the tree"
    assert audit(world).is_intact


@requirement("llm.usage-sums")
async def test_usage_counts_the_model_calls_of_archived_tasks(world: World) -> None:
    agent = await world.register()
    call_of = """insert into llm_calls (call_id, tenant, key_name, task_id, operation, provider, model, outcome,
        input_tokens, output_tokens, estimated, cost, latency_ms, happened_at)
        values (:task, 'default', 'k', :task, 'chat', 'p', 'm', 'ok', 7, 3, 0, 900, 12, :at)"""
    for at in (1, world.clock.now()):
        await run(world, call_of, task=await world.do(agent), at=at)

    async def requests() -> int:
        return int((await call(world, "GET", "/llm/usage"))["data"]["totalRequests"])

    # None is summed yet, and the newest may not be.
    assert ((await archive(world)).tasks, await requests()) == (1, 2)
    world.clock.advance(seconds=3600)
    assert ((await archive(world)).tasks, await requests()) == (1, 2)
    assert await count(world, "llm_calls") == 0


@requirement("retention.what-stays")
async def test_a_subtask_stays_while_its_parent_may_ask_for_its_result(world: World) -> None:
    await world.register()
    parent = await world.submit()
    child = await world.submit(metadata={"parent_task_id": parent})
    await call(world, "POST", f"/tasks/{child}/cancel")
    assert (await archive(world)).tasks == 0
    await call(world, "POST", f"/tasks/{parent}/cancel")
    assert (await archive(world)).tasks == 2


@requirement("retention.what-stays")
async def test_a_task_of_a_conversation_stays_until_the_conversation_is_deleted(world: World) -> None:
    agent = await world.register()
    await call(world, "POST", "/sessions", 201, json={"id": "talk"})
    task = await world.submit(session="talk")
    claim = await world.claim(agent)
    await call(world, "POST", f"/tasks/{task}/complete", json={"epoch": claim["epoch"], "result": "yes"})
    assert (await archive(world)).tasks == 0
    await call(world, "DELETE", "/sessions/talk", 200)
    assert (await archive(world)).tasks == 1


@requirement("retention.what-stays")
async def test_a_task_with_an_undelivered_webhook_stays(world: World) -> None:
    agent = await world.register()
    body = {"url": "https://receiver.example/hook", "events": ["task.completed"]}
    hook = await call(world, "POST", "/webhooks", 201, json=body)
    task = await world.do(agent)
    await run(world, "update webhook_deliveries set due_at = due_at + 1000000000000000")
    assert (await archive(world)).tasks == 0
    assert (await world.task(task))["status"] == "completed"
    await call(world, "DELETE", f"/webhooks/{hook['id']}")
    assert (await archive(world)).tasks == 1


@requirement("retention.what-stays")
async def test_an_event_that_is_not_signed_or_was_changed_keeps_its_task(world: World) -> None:
    agent = await world.register()
    await sign(world)
    changed = await world.do(agent)
    await sign(world)
    await run(world, "update events set message = 'x' where task_id = :task", task=changed)
    unsigned = await world.do(agent)
    await world.kernel.provenance.sequencer.drain()
    result = await archiver(world).archive(world.clock.now() + 1)
    assert (result.tasks, result.skipped) == (0, 2)
    result = await archive(world)
    assert (result.tasks, result.skipped) == (1, 1), "a skipped task counts once, however many passes there are"
    await call(world, "GET", f"/tasks/{unsigned}", 410)


@requirement("retention.setting")
async def test_the_setting_archives_in_the_background_what_is_old_enough(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_RETENTION_DAYS=str(DAYS))
    agent = await world.register()
    old = await world.do(agent)
    await sign(world)
    world.clock.advance(days=DAYS, seconds=1)
    new = await world.do(agent)
    await sign(world)
    before = world.clock.now() - world.kernel.archiver.days * 86_400_000_000
    await world.kernel.archiver.archive(before)
    await call(world, "GET", f"/tasks/{old}", 410)
    await call(world, "GET", f"/tasks/{new}")
    detailed = await call(world, "GET", "/health/detailed")
    assert detailed["components"]["archive"]["status"] == "available"


@requirement("retention.setting")
async def test_an_archive_that_cannot_be_written_loses_nothing_and_is_reported(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_RETENTION_DAYS=str(DAYS))
    agent = await world.register()
    task = await world.do(agent)
    folder = world.kernel.archiver.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("not a folder")
    with pytest.raises(OSError, match=r"exists|directory"):
        await archive(world)
    assert (await world.task(task))["status"] == "completed"
    assert await count(world, "archives") == 0
    folder.unlink()
    assert (await archive(world)).tasks == 1


@requirement("retention.setting")
def test_a_start_without_the_library_says_what_to_install() -> None:
    import sys

    from stentor.domains.retention import parquet_files

    kept = {name: sys.modules.get(name) for name in ("pyarrow", "pyarrow.parquet")}
    sys.modules["pyarrow.parquet"] = None  # type: ignore[assignment]
    try:
        with pytest.raises(StartRefused, match="archive"):
            parquet_files.require_library()
    finally:
        for name, module in kept.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


@requirement("retention.what-stays")
@pytest.mark.parametrize("size", [1_000, 20_000])
async def test_a_task_with_a_damaged_step_stays_and_holds_up_no_other_one(world: World, size: int) -> None:
    agent = await world.register()
    damaged = await world.submit()
    claim = await world.claim(agent)
    step = {"epoch": claim["epoch"], "key": "a", "name": "a", "value": "x" * size}
    await call(world, "POST", f"/tasks/{damaged}/steps", json=step)
    await call(world, "POST", f"/tasks/{damaged}/complete", json={"epoch": claim["epoch"], "result": {}})
    await run(world, "update task_steps set deflated = :bytes where deflated is not null", bytes=b"damaged")
    await run(world, "update step_values set content = :bytes", bytes=b"damaged")
    await world.do(agent)
    result = await archive(world)
    assert (result.tasks, result.skipped) == (1, 1)
    await call(world, "GET", f"/tasks/{damaged}")


@requirement("retention.what-stays")
async def test_a_row_that_no_file_takes_leaves_no_unfinished_archive(world: World) -> None:
    agent = await world.register()
    task = await world.do(agent)
    await sign(world)

    def reject(*_: object) -> NoReturn:
        raise TypeError("Expected bytes")

    with pytest.raises(TypeError):
        await archiver(world, write_files=reject).archive(world.clock.now() + 1)
    assert await count(world, "archives") == 0
    await call(world, "GET", f"/tasks/{task}")
