"""The journal of a task over HTTP: steps, effects, and what a person records of an effect."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from typing import Any

import pytest

from stentor.core import ids
from stentor.core.db import AppendOnlyTable, Sql, Tx
from stentor.domains.steps import store
from tests.conftest import World
from tests.requirements import requirement

_RECORDED = (
    "tenant",
    "kind",
    "state",
    "epoch",
    "encoding",
    "value",
    "size",
    "started_at",
    "ended_at",
)
_RECORDED_VALUES = ("default", "step", "completed", 1, "json", "1", 1)


class Attempt:
    """A claimed task, as its worker sees it."""

    def __init__(self, world: World, task_id: str, epoch: int, key: str = "ADMIN") -> None:
        self.world, self.task_id, self.epoch, self.key = world, task_id, epoch, key

    async def post(self, verb: str, **body: Any) -> Any:
        path = f"/api/v1/tasks/{self.task_id}/{verb}"
        return await self.world.clients[self.key].post(path, json={"epoch": self.epoch, **body})

    async def step(self, name: str, value: Any = None, **fields: Any) -> Any:
        return await self.post("steps", **{"key": name, "name": name, "value": value, **fields})

    async def begin(self, name: str, **fields: Any) -> Any:
        return await self.post("effects", **{"key": name, "name": name, **fields})

    async def journal(self, **params: Any) -> dict[str, Any]:
        answer = await self.world.admin.get(f"/api/v1/tasks/{self.task_id}/steps", params=params)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def fail(self) -> None:
        answer = await self.post("fail", error={"message": "no"})
        assert answer.status_code == 200, answer.text


async def begin_attempt(world: World, *, task: dict[str, Any] | None = None, **fields: Any) -> Attempt:
    """Register an agent, submit a task to it and claim it; `task` are fields of the task."""
    agent = await world.register(**fields)
    task_id = await world.submit(**(task or {}))
    return Attempt(world, task_id, (await world.claim(agent))["epoch"])


async def retry(attempt: Attempt) -> Attempt:
    """Fail the task, retry it as a person, and claim it again."""
    world = attempt.world
    await attempt.fail()
    assert (await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/retry")).status_code == 202
    agent = (await world.task(attempt.task_id))["assigned_agent"]
    return Attempt(world, attempt.task_id, (await world.claim(agent))["epoch"])


def refused(answer: Any, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


@requirement("steps.first-outcome-stands")
async def test_the_first_outcome_stands_and_is_in_the_run_log(world: World) -> None:
    attempt = await begin_attempt(world)
    first = (await attempt.step("fetch", {"pages": 3}, duration_ms=12)).json()
    assert (first["recorded"], first["state"], first["epoch"]) == (True, "completed", 1)
    again = (await attempt.step("fetch", {"pages": 4})).json()
    assert (again["recorded"], again["value"]) == (False, {"pages": 3})
    failed = (await attempt.step("fetch", None, error={"message": "late"})).json()
    assert (failed["recorded"], failed["state"]) == (False, "completed")
    events = [event for event in await world.events(attempt.task_id) if event["event_type"] == "step_completed"]
    assert [event["metadata"]["key"] for event in events] == ["fetch"]
    assert events[0]["metadata"]["sha256"] == hashlib.sha256(b'{"pages":3}').hexdigest()
    assert events[0]["duration_ms"] == 12


@requirement("steps.first-outcome-stands")
async def test_without_its_event_a_step_is_not_recorded(world: World) -> None:
    attempt = await begin_attempt(world)
    world.runlog.broken = True
    for answer in (await attempt.step("a", 1), await attempt.begin("pay")):
        assert answer.status_code == 503
    world.runlog.broken = False
    assert (await attempt.journal())["steps"] == []


@requirement("steps.first-outcome-stands")
async def test_of_many_who_record_a_step_at_once_one_wins_and_all_get_its_value(world: World) -> None:
    attempt = await begin_attempt(world)
    answers = [answer.json() for answer in await asyncio.gather(*(attempt.step("roll", n) for n in range(12)))]
    winners = [answer for answer in answers if answer["recorded"]]
    assert len(winners) == 1
    stored = (await attempt.journal())["steps"][0]["value"]
    assert {answer["value"] for answer in answers if not answer["recorded"]} == {stored}


@requirement("sandbox.quarantined-worker")
async def test_nothing_of_a_quarantined_worker_is_accepted_and_what_it_has_in_hand_fails(world: World) -> None:
    attempt = await begin_attempt(world)
    agent = (await world.task(attempt.task_id))["assigned_agent"]
    await attempt.step("a", 1)
    for _ in range(3):
        call = {"tool": "shell", "operation": "run"}
        await world.admin.post(f"/api/v1/registry/agents/{agent}/authorize", json=call)
    wait = {"key": "q", "name": "q", "kind": "question", "question": "May I?", "options": ["yes"]}
    for answer in (
        await attempt.step("b", 1),
        await attempt.begin("pay"),
        await attempt.post("waits", **wait),
        await attempt.post("heartbeat"),
        await attempt.post("tokens", tokens=["x"]),
        await attempt.post("complete", result=1, performance=1),
    ):
        refused(answer, 409, "LEASE_LOST")
        assert "quarantined" in answer.json()["error"]["message"]
    world.clock.advance(seconds=31)
    await world.kernel.tasks.reconciler.tick(0)
    task = await world.task(attempt.task_id)
    assert (task["status"], task["error"]["code"], task["attempts"]) == ("failed", "AGENT_QUARANTINED", 1)
    assert [step["key"] for step in (await attempt.journal())["steps"]] == ["a"]


@requirement("steps.fenced")
async def test_only_the_holder_of_the_lease_writes(world: World) -> None:
    attempt = await begin_attempt(world, key_name="BOB")
    late = Attempt(world, attempt.task_id, attempt.epoch + 1)
    refused(await late.step("a", 1), 409, "LEASE_LOST")
    refused(await late.begin("pay"), 409, "LEASE_LOST")
    wait = {"key": "nap", "name": "nap", "kind": "sleep", "seconds": 1}
    refused(await late.post("waits", **wait), 409, "LEASE_LOST")
    other = Attempt(world, attempt.task_id, attempt.epoch, "PROPOSER")
    for answer in (await other.step("a", 1), await other.begin("pay"), await other.post("waits", **wait)):
        assert answer.status_code in (403, 404)
    assert (await Attempt(world, attempt.task_id, attempt.epoch, "OTHER").step("a", 1)).status_code == 404
    await attempt.post("complete", result=1)
    refused(await attempt.step("a", 1), 409, "LEASE_LOST")
    assert (await attempt.journal())["steps"] == []


@requirement("steps.mismatch")
@requirement("steps.values")
@pytest.mark.parametrize("encoding", ["json", "base64"])
@pytest.mark.parametrize("kind", ["step", "effect"])
async def test_a_value_is_stored_in_fewer_bytes_and_comes_back_whole(world: World, kind: str, encoding: str) -> None:
    text = "The quick brown fox jumps over the lazy dog. " * 20
    value = text if encoding == "json" else base64.b64encode(text.encode()).decode()
    attempt = await begin_attempt(world)
    if kind == "effect":
        await attempt.begin("say")
    assert (await attempt.step("say", value, kind=kind, encoding=encoding)).status_code == 200
    stored = Sql("select coalesce(length(value), 0) + coalesce(length(deflated), 0) from task_steps")
    (row,) = await world.kernel.infra.db.read(lambda tx: tx.rows(stored))
    assert row[0] < len(text) / 2
    (step,) = (await attempt.journal())["steps"]
    assert step["value"] == value
    again = (await attempt.step("say", "other", kind=kind)).json()
    assert (again["recorded"], again["value"]) == (False, value)


async def test_a_damaged_value_is_told_and_the_others_are_read(world: World) -> None:
    attempt = await begin_attempt(world)
    for name in ("good", "bad"):
        await attempt.step(name, name * 200)
    damage = Sql("update task_steps set deflated = :damaged where key = 'bad'")
    await world.kernel.infra.db.write(lambda tx: tx.run(damage, damaged=b"no"))
    path = f"/api/v1/tasks/{attempt.task_id}/steps"
    refused(await world.admin.get(f"{path}/bad"), 500, "RECORD_CORRUPT")
    assert (await world.admin.get(f"{path}/good")).json()["value"] == "good" * 200


async def test_another_step_at_a_key_is_told_by_both_names(world: World) -> None:
    attempt = await begin_attempt(world)
    await attempt.step("fetch", 1)
    changed = await attempt.post("steps", key="fetch", name="download", value=1)
    refused(changed, 409, "STEP_MISMATCH")
    assert "'fetch'" in changed.text
    assert "'download'" in changed.text
    refused(await attempt.begin("fetch"), 409, "STEP_MISMATCH")
    assert len((await attempt.journal())["steps"]) == 1


@requirement("steps.mismatch")
async def test_an_effect_that_has_not_begun_has_no_outcome(world: World) -> None:
    attempt = await begin_attempt(world)
    refused(await attempt.step("pay", 1, kind="effect"), 409, "STEP_UNKNOWN")


@requirement("steps.values")
async def test_a_long_value_is_stored_once_and_comes_back_whole(world: World) -> None:
    attempt = await begin_attempt(world)
    text, data = "long " * 5_000, base64.b64encode(bytes(range(256)) * 400).decode()
    for number in range(3):
        await attempt.step(f"text-{number}", text)
    await attempt.step("data", data, encoding="base64")
    listed = (await attempt.journal())["steps"]
    assert [step["value"] for step in listed] == [None] * 4
    assert listed[0]["value_sha256"] == hashlib.sha256(f'"{text}"'.encode()).hexdigest()
    assert listed[3]["size"] == 256 * 400
    for step, value in zip(listed, [text, text, text, data], strict=True):
        read = await world.admin.get(f"/api/v1/tasks/{attempt.task_id}/steps/{step['key']}")
        assert read.json()["value"] == value

    def count(tx: Tx) -> int:
        return int(tx.rows(Sql("select count(*) from step_values"))[0][0])

    assert await world.kernel.infra.db.read(count) == 2
    await world.kernel.infra.db.write(lambda tx: tx.run(Sql("delete from step_values")))
    damaged = await world.admin.get(f"/api/v1/tasks/{attempt.task_id}/steps/data")
    refused(damaged, 500, "RECORD_CORRUPT")


@requirement("steps.values")
async def test_a_value_of_ten_megabytes_comes_back_and_a_longer_one_is_refused(world: World) -> None:
    attempt = await begin_attempt(world)
    limit = 10_000_000
    longest = "x" * (limit - 200)
    assert (await attempt.step("long", longest)).status_code == 200
    read = await world.admin.get(f"/api/v1/tasks/{attempt.task_id}/steps/long")
    assert read.json()["value"] == longest
    refused(await attempt.step("longer", "x" * limit), 413, "PAYLOAD_TOO_LARGE")
    assert [step["key"] for step in (await attempt.journal())["steps"]] == ["long"]


@pytest.mark.slow
@requirement("steps.pages")
async def test_a_journal_of_100_000_steps_is_read_written_and_taken_over(world: World) -> None:
    attempt, count = await begin_attempt(world), 100_000
    await attempt.step("first", 0)
    filled = [f"step {n}" for n in range(1, count)]
    await _fill(world, [(attempt.task_id, key) for key in filled])
    keys, cursor = [], {}
    while True:
        page = await attempt.journal(limit=1000, **cursor)
        keys += [step["key"] for step in page["steps"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert keys == ["first", *filled]
    await attempt.step("last", 1)
    await attempt.fail()
    answer = await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/rerun", json={"from_step": "last"})
    assert answer.status_code == 202, answer.text
    taken = Sql("select count(*) from task_steps where tenant = 'default' and task_id = :task_id")
    again = answer.json()["task_id"]
    assert await world.kernel.infra.db.read(lambda tx: tx.rows(taken, task_id=again)[0][0]) == count


@requirement("steps.long-journals")
@pytest.mark.only("postgresql", reason="SQLite always takes the index whose columns are all given")
@pytest.mark.parametrize("tasks", [2_000, 8_000])
async def test_finding_a_step_reads_one_row_however_long_the_journal_is(world: World, tasks: int) -> None:
    """With the statistics of a table where so many tasks have one step each."""
    attempt, count = await begin_attempt(world), 2_000
    await attempt.step("first", 0)
    await _fill(world, [(f"task {n}", "only") for n in range(tasks)])
    await world.kernel.infra.db.write(lambda tx: tx.run(Sql("analyze task_steps")))
    await _fill(world, [(attempt.task_id, f"step {n}") for n in range(count)])
    given = {"tenant": "default", "task_id": attempt.task_id, "key": "step 5"}
    found = [(name + "_0", value) for name, value in given.items()]
    for sql, params in (
        (store._FIND_TASK.statements[1], dict(found)),
        (store._FIND, given),
        (store._FIND_LAST, {"tenant": "default", "task_id": attempt.task_id}),
    ):
        explain = Sql(f"explain (analyze, format json) {sql.text}")
        ((plans,),) = await world.kernel.infra.db.read(lambda tx: tx.rows(explain, **params))  # noqa: B023
        assert max(_rows_read(plans[0]["Plan"], "task_steps")) <= 1, plans


def _rows_read(plan: dict[str, Any], table: str) -> list[int]:
    """Return how many rows each scan of a table reads in a plan of PostgreSQL."""
    below = [rows for part in plan.get("Plans", ()) for rows in _rows_read(part, table)]
    if plan.get("Relation Name") != table:
        return below
    return [plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0), *below]


async def _fill(world: World, steps: list[tuple[str, str]]) -> None:
    """Record steps with these tasks and keys, without their events."""
    now = world.clock.now()
    table = AppendOnlyTable("task_steps", ("task_id", "key", "name", "event_id", *_RECORDED))
    rows = [(*step, step[1], ids.new_id(), *_RECORDED_VALUES, now, now) for step in steps]

    def fill(tx: Tx) -> None:
        for row in rows:
            tx.append(table, row)

    await world.kernel.infra.db.write(fill)


@requirement("steps.values")
@pytest.mark.parametrize(
    "fields",
    [
        {"key": ""},
        {"key": "x" * 1025},
        {"key": "a\0b"},
        {"name": "x" * 256},
        {"value": 1, "error": {"message": "no"}},
        {"value": "not base64!", "encoding": "base64"},
        {"value": 5, "encoding": "base64"},
        {"kind": "sleep"},
        {"epoch": 0},
        {"position": -1},
        {"duration_ms": -1},
    ],
)
async def test_what_is_no_step_is_refused(world: World, fields: dict[str, Any]) -> None:
    attempt = await begin_attempt(world)
    refused(await attempt.post("steps", **{"key": "a", "name": "a", **fields}), 400, "INVALID_REQUEST")
    assert (await attempt.journal())["steps"] == []


async def test_a_long_journal_is_listed_in_pages_in_its_order(world: World) -> None:
    attempt = await begin_attempt(world)
    for number in range(25):
        await attempt.step(f"step {number}/a", number)
    keys, cursor = [], None
    while True:
        page = await attempt.journal(limit=10, **({"cursor": cursor} if cursor else {}))
        keys += [step["key"] for step in page["steps"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert keys == [f"step {number}/a" for number in range(25)]
    read = await world.admin.get(f"/api/v1/tasks/{attempt.task_id}/steps/step%207%2Fa")
    assert read.json()["value"] == 7


@requirement("steps.retry")
async def test_after_a_retry_failed_steps_run_again_and_completed_ones_do_not(world: World) -> None:
    attempt = await begin_attempt(world)
    await world.register("zoe")  # would do it as well, but has not written this journal
    await attempt.step("good", 1)
    await attempt.step("bad", None, error={"type": "OSError", "message": "no"})
    agent = (await world.task(attempt.task_id))["assigned_agent"]
    second = await retry(attempt)
    assert (await world.task(attempt.task_id))["assigned_agent"] == agent
    assert {step["key"]: step["superseded"] for step in (await second.journal())["steps"]} == {
        "good": False,
        "bad": True,
    }
    assert (await second.step("good", 2)).json()["value"] == 1
    assert (await second.step("bad", 2)).json()["recorded"] is True
    third = await retry(second)
    assert [step["value"] for step in (await third.journal())["steps"]] == [1, 2]


@requirement("steps.progress")
async def test_only_attempts_that_are_lost_without_a_step_count(world: World) -> None:
    attempt = await begin_attempt(world)
    agent = (await world.task(attempt.task_id))["assigned_agent"]
    for number in range(12):
        await attempt.step(f"step {number}", number)
        world.clock.advance(seconds=31)
        await world.kernel.tasks.reconciler.tick(0)
        attempt = Attempt(world, attempt.task_id, (await world.claim(agent))["epoch"])
    for _ in range(4):
        world.clock.advance(seconds=31)
        await world.kernel.tasks.reconciler.tick(0)
        assert (await world.task(attempt.task_id))["status"] == "queued"
        await world.claim(agent)
    world.clock.advance(seconds=31)
    await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(attempt.task_id))["error"]["code"] == "LEASE_LOST"


@requirement("steps.progress")
async def test_an_effect_that_kills_its_worker_each_time_is_given_up(world: World) -> None:
    attempt = await begin_attempt(world)
    agent = (await world.task(attempt.task_id))["assigned_agent"]
    for _ in range(6):
        assert (await attempt.begin("pay")).status_code == 200
        world.clock.advance(seconds=31)
        await world.kernel.tasks.reconciler.tick(0)
        if (await world.task(attempt.task_id))["status"] == "failed":
            break
        attempt = Attempt(world, attempt.task_id, (await world.claim(agent))["epoch"])
    assert (await world.task(attempt.task_id))["error"]["code"] == "LEASE_LOST"


@requirement("steps.retry")
async def test_an_error_that_something_final_was_built_on_stays_after_a_retry(world: World) -> None:
    attempt = await begin_attempt(world)
    for name in ("card", "other"):
        await attempt.step(name, None, error={"message": "declined", "code": "DECLINED"})
    assert (await attempt.begin("invoice", handled=["card", "unknown"])).json()["recorded"]
    await attempt.step("invoice", 1, kind="effect")
    second = await retry(attempt)
    superseded = {step["key"]: step["superseded"] for step in (await second.journal())["steps"]}
    assert superseded == {"card": False, "other": True, "invoice": False}
    again = (await second.step("card", 1)).json()
    assert (again["recorded"], again["error"]["code"]) == (False, "DECLINED")
    assert (await second.step("other", 1)).json()["recorded"] is True


@requirement("steps.effects")
async def test_an_effect_begins_once_with_one_key_in_all_attempts(world: World) -> None:
    attempt = await begin_attempt(world)
    answers = [answer.json() for answer in await asyncio.gather(*(attempt.begin("pay") for _ in range(8)))]
    assert sum(answer["recorded"] for answer in answers) == 1
    keys = {answer["idempotency_key"] for answer in answers}
    second = await retry(attempt)
    again = (await second.begin("pay")).json()
    assert {again["idempotency_key"]} == keys
    assert (again["recorded"], again["state"], again["epoch"]) == (False, "started", 1)
    ended = (await second.step("pay", {"paid": 5}, kind="effect")).json()
    assert (ended["recorded"], ended["state"]) == (True, "completed")


@requirement("steps.effects")
@pytest.mark.parametrize("happened", [True, False])
async def test_a_person_records_whether_an_effect_happened(world: World, happened: bool) -> None:
    attempt = await begin_attempt(world, key_name="BOSS")
    key = (await attempt.begin("pay")).json()["idempotency_key"]
    path = f"/api/v1/tasks/{attempt.task_id}/steps/pay/resolve"
    body = {"happened": happened, "reason": "seen in the bank"} | ({"value": 5} if happened else {})
    refused(await world.admin.post(path, json=body), 409, "CONFLICT")  # the attempt still runs
    await attempt.fail()
    listed = (await world.admin.get("/api/v1/decisions")).json()["steps"]
    assert [(step["task_id"], step["key"], step["kind"]) for step in listed] == [(attempt.task_id, "pay", "effect")]
    refused(await world.clients["BOSS"].post(path, json=body), 403, "FORBIDDEN")  # the agent's own key
    assert (await world.admin.post(path, json=body)).json()["state"] == ("completed" if happened else "failed")
    refused(await world.admin.post(path, json={**body, "reason": "heard"}), 409, "CONFLICT")
    assert (await world.admin.get("/api/v1/decisions")).json()["steps"] == []
    assert (await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/retry")).status_code == 202
    agent = (await world.task(attempt.task_id))["assigned_agent"]
    second = Attempt(world, attempt.task_id, (await world.claim(agent))["epoch"])
    begun = (await second.begin("pay")).json()
    if happened:
        assert (begun["state"], begun["value"]) == ("completed", 5)
    else:
        assert (begun["state"], begun["recorded"]) == ("started", True)
        assert begun["idempotency_key"] == key  # should the person be wrong, the other side still recognizes it


@requirement("steps.unused")
async def test_a_task_without_steps_asks_no_table_of_the_journal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = await world.register()
    asked: list[str] = []
    for method in ("run", "rows", "row"):
        original = getattr(Tx, method)

        def spy(self: Tx, sql: Sql, _original: Any = original, **params: Any) -> Any:
            asked.append(str(getattr(sql, "text", sql)))
            return _original(self, sql, **params)

        monkeypatch.setattr(Tx, method, spy)
    await world.do(agent)
    assert any("tasks" in sql for sql in asked)
    assert not [sql for sql in asked if "task_steps" in sql and "state = 'started'" not in sql]


@requirement("tasks.rerun-from")
async def test_a_task_goes_on_from_a_step_with_what_was_recorded_before_it(world: World) -> None:
    attempt = await begin_attempt(world)
    for name in ("a", "b", "c"):
        await attempt.step(name, name * 5_000)
    await attempt.begin("pay")
    await attempt.fail()
    path = f"/api/v1/tasks/{attempt.task_id}/rerun"
    refused(await world.admin.post(path, json={"from_step": "z"}), 404, "NOT_FOUND")
    refused(await world.clients["OTHER"].post(path, json={"from_step": "c"}), 404, "NOT_FOUND")
    assert (await world.admin.get("/api/v1/tasks")).json()["total"] == 1
    for key, taken in (("c", ["a", "b"]), ("a", []), ("pay", ["a", "b", "c"])):
        answer = await world.admin.post(path, json={"from_step": key})
        assert answer.status_code == 202, answer.text
        again = Attempt(world, answer.json()["task_id"], 0)
        assert [step["key"] for step in (await again.journal())["steps"]] == taken
        meta = (await world.task(again.task_id))["metadata"]
        assert (meta["rerun_of"], meta["rerun_from"]) == (attempt.task_id, key)
    whole = await world.admin.get(f"/api/v1/tasks/{again.task_id}/steps/b")
    assert whole.json()["value"] == "b" * 5_000


@requirement("tasks.rerun-from")
async def test_an_effect_of_which_nothing_is_known_is_not_left_behind(world: World) -> None:
    attempt = await begin_attempt(world)
    await attempt.begin("pay")
    await attempt.step("summarize", 1)
    await attempt.fail()
    path = f"/api/v1/tasks/{attempt.task_id}"
    refused(await world.admin.post(f"{path}/rerun", json={"from_step": "summarize"}), 409, "CONFLICT")
    body = {"happened": True, "value": "paid", "reason": "The bank says so."}
    assert (await world.admin.post(f"{path}/steps/pay/resolve", json=body)).status_code == 200
    answer = await world.admin.post(f"{path}/rerun", json={"from_step": "summarize"})
    (step,) = (await Attempt(world, answer.json()["task_id"], 0).journal())["steps"]
    assert (step["key"], step["value"]) == ("pay", "paid")
    assert (await world.admin.post(f"{path}/rerun", json={"from_step": "a\0b"})).status_code == 400


@requirement("tasks.rerun-from")
async def test_what_ran_within_the_step_and_what_failed_run_anew_but_no_effect_does(world: World) -> None:
    attempt = await begin_attempt(world)
    await attempt.step("fetch", 1)
    await attempt.step("broken", error={"type": "E", "message": "no"})
    await attempt.step("charge/a", 1)
    await attempt.begin("charge/pay")
    await attempt.post("steps", key="charge/pay", name="charge/pay", kind="effect", value="paid")
    await attempt.step("charge", 1)
    await attempt.fail()
    answer = await world.admin.post(f"/api/v1/tasks/{attempt.task_id}/rerun", json={"from_step": "charge"})
    again = Attempt(world, answer.json()["task_id"], 0)
    steps = (await again.journal())["steps"]
    assert [(step["key"], step["superseded"]) for step in steps] == [
        ("fetch", False),
        ("broken", True),
        ("charge/pay", False),
    ]
