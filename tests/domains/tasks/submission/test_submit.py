"""Submitting and reading tasks."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from stentor.core.db.rows_sql import PendingRows
from stentor.domains.tasks import store
from stentor.domains.tasks.model import estimate_times
from tests.conftest import World
from tests.core.test_database import held
from tests.patience import soon
from tests.requirements import requirement

PATH = "/api/v1/tasks"
BODY: dict[str, Any] = {"type": "echo", "input": "hi", "required_capabilities": ["echo"]}


async def post(world: World, key: str = "ADMIN", **fields: Any) -> Any:
    return await world.clients[key].post(PATH, json={**BODY, **fields})


async def total(world: World) -> int:
    return int((await world.admin.get(PATH)).json()["total"])


@requirement("tasks.submit-answers-202", "tasks.submit-generates-uuidv7")
async def test_a_submit_answers_202_with_an_id_a_status_and_estimates(world: World) -> None:
    await world.register()
    answer = await post(world)
    assert answer.status_code == 202
    body = answer.json()
    expected = {
        "task_id",
        "status",
        "estimated_start",
        "estimated_completion",
        "notice",
        "notice_code",
        "provenance_id",
        "atp",
    }
    assert set(body) == expected
    assert body["status"] == "queued"
    assert body["estimated_start"] <= body["estimated_completion"]
    assert uuid.UUID(body["task_id"]).version == 7


@requirement("atp.responses-carry-atp-block")
async def test_a_submit_answers_with_the_provenance_and_the_envelope_of_its_work(world: World) -> None:
    await world.register()
    body = (await post(world, metadata={"priority": "high"})).json()
    task = await world.task(body["task_id"])
    assert body["provenance_id"] == task["provenance_id"]
    assert body["atp"]["header"] == {
        "mode": "async",
        "context": task["provenance_id"],
        "priority": "high",
        "actionType": "execute",
        "targetZone": "kernel",
    }


@requirement("atp.responses-carry-atp-block")
async def test_a_denied_submit_names_the_event_that_it_began_with(world: World) -> None:
    for _ in range(2):  # the second time from what was stored
        answer = await post(world, id="denied", required_capabilities=["fly"])
        details = answer.json()["error"]["details"]
        assert details["provenance_id"] == (await world.task("denied"))["provenance_id"]


@requirement("tasks.submit-requires-type-and-input")
@pytest.mark.parametrize("missing", ["type", "input"])
async def test_a_submit_names_the_field_that_is_missing(world: World, missing: str) -> None:
    await world.register()
    answer = await world.admin.post(PATH, json={k: v for k, v in BODY.items() if k != missing})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "INVALID_REQUEST")
    assert missing in error["details"]["fields"]
    assert await total(world) == 0


@requirement("tasks.input-and-result-are-any-json")
@pytest.mark.parametrize("value", [{"a": [1, {"b": None}]}, [1, "x"], "text\u0000\U0001f600", 1.5, -7, True, False, 0])
async def test_input_and_result_are_any_json_and_read_back_unchanged(world: World, value: Any) -> None:
    agent = await world.register()
    task_id = await world.submit(input=value)
    claim = await world.claim(agent)
    assert (claim["input"], type(claim["input"])) == (value, type(value))
    await world.admin.post(f"{PATH}/{task_id}/complete", json={"epoch": claim["epoch"], "result": value})
    result = (await world.task(task_id))["result"]
    assert (result, type(result)) == (value, type(value))


@requirement("tasks.submit-accepts-own-id")
@pytest.mark.parametrize("task_id", ["x", "a" * 255, "with space", "Ünïcode✓", "../etc/passwd", "a/b", "%2F", "?#&"])
async def test_an_own_id_of_printable_characters_is_kept(world: World, task_id: str) -> None:
    await world.register()
    answer = await post(world, id=task_id)
    assert (answer.status_code, answer.json()["task_id"]) == (202, task_id)
    escaped = "".join(f"%{byte:02X}" for byte in task_id.encode())
    assert (await world.admin.get(f"{PATH}/{escaped}")).json()["task_id"] == task_id


@requirement("tasks.submit-accepts-own-id")
@pytest.mark.parametrize("task_id", ["", "a" * 256, "a\nb", "a\u0000b", "\u200b", 7])
async def test_any_other_own_id_is_refused(world: World, task_id: Any) -> None:
    await world.register()
    answer = await post(world, id=task_id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@requirement("tasks.same-id-same-body-replays")
async def test_the_same_id_and_body_answer_as_the_first_time(world: World) -> None:
    agent = await world.register()
    first = await post(world, id="mine")
    await world.claim(agent)
    world.clock.advance(seconds=9)
    again = await world.admin.post(
        PATH, json={"required_capabilities": ["echo"], "input": "hi", "type": "echo", "id": "mine"}
    )
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert await total(world) == 1


@requirement("tasks.same-id-same-body-replays")
async def test_a_denied_submit_replays_its_denial_also_after_a_retry(world: World) -> None:
    first = await post(world, id="mine")
    await world.register()
    second = await post(world, id="mine")
    assert (await world.admin.post(f"{PATH}/mine/retry")).status_code == 202
    third = await post(world, id="mine")
    for answer in (first, second, third):
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "ROUTING_CAPABILITY_UNAVAILABLE")
    assert (await world.task("mine"))["status"] == "queued"


@requirement("tasks.same-id-other-body-409")
async def test_a_known_id_with_another_body_is_a_conflict(world: World) -> None:
    await world.register()
    await post(world, id="mine")
    before = await world.task("mine")
    others: list[dict[str, Any]] = [
        {"input": "other"},
        {"type": "other"},
        {"metadata": {"priority": "high"}},
        {"timeout_seconds": 5},
    ]
    for fields in others:
        answer = await post(world, id="mine", **fields)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CONFLICT")
    assert await world.task("mine") == before


async def test_ids_belong_to_their_tenant(world: World) -> None:
    await world.register()
    await world.clients["OTHER"].post("/api/v1/registry/agents", json={"name": "his", "capabilities": ["echo"]})
    assert (await post(world, id="mine")).status_code == 202
    assert (await post(world, "OTHER", id="mine", input="other")).status_code == 202


@requirement("tasks.timeout-default-and-range")
async def test_the_timeout_is_300_unless_given(world: World) -> None:
    await world.register()
    assert (await world.task(await world.submit()))["timeout_seconds"] == 300
    for seconds in (1, 86_400):
        assert (await world.task(await world.submit(timeout_seconds=seconds)))["timeout_seconds"] == seconds


@requirement("tasks.timeout-default-and-range")
@pytest.mark.parametrize("seconds", [0, -1, 86_401, 1.5, "60", None, True])
async def test_a_timeout_out_of_range_is_refused(world: World, seconds: Any) -> None:
    await world.register()
    assert (await post(world, timeout_seconds=seconds)).status_code == 400


@requirement("tasks.metadata-fields-checked")
async def test_metadata_is_kept(world: World) -> None:
    await world.register()
    metadata = {"user_id": str(uuid.uuid4()), "priority": "low", "retry_count": 2, "tags": ["a", "b"]}
    assert (await world.task(await world.submit(metadata=metadata)))["metadata"] == metadata


@requirement("tasks.metadata-fields-checked")
@pytest.mark.parametrize(
    "metadata",
    [
        {"user_id": "ann"},
        {"priority": "critical"},
        {"priority": 1},
        {"retry_count": "2"},
        {"retry_count": 1.5},
        {"tags": "a"},
        {"tags": [1]},
        {"colour": "red"},
        [],
    ],
    ids=str,
)
async def test_metadata_of_another_shape_is_refused(world: World, metadata: Any) -> None:
    await world.register()
    assert (await post(world, metadata=metadata)).status_code == 400


@requirement("tasks.estimates-come-from-queue-and-history")
async def test_estimates_grow_with_the_queue_and_the_moving_average(world: World) -> None:
    agent = await world.register()
    await world.submit()
    claim = await world.claim(agent)
    world.clock.advance(seconds=8)
    await world.admin.post(f"{PATH}/{claim['task_id']}/complete", json={"epoch": claim["epoch"], "result": 1})
    answers = [(await post(world)).json() for _ in range(65)]
    assert answers[0]["estimated_start"] < answers[-1]["estimated_start"]
    starts = [answer["estimated_start"] for answer in answers]
    assert starts == sorted(starts)
    seen = {(a["estimated_start"], a["estimated_completion"]) for a in answers}
    assert len(seen) > 1


@requirement("tasks.estimates-come-from-queue-and-history")
@pytest.mark.parametrize(
    ("ahead", "mean_ms", "lanes", "expected"),
    [(0, 1000, 1, (0, 1_000_000)), (3, 1000, 1, (3_000_000, 4_000_000)), (5, 2000, 2, (4_000_000, 6_000_000))],
)
def test_an_estimate_is_the_queue_ahead_times_the_average(
    ahead: int, mean_ms: float, lanes: int, expected: tuple[int, int]
) -> None:
    assert estimate_times(0, ahead, mean_ms, lanes) == expected


@requirement("tasks.read-fields", "tasks.read-null-until-known")
async def test_a_task_tells_only_what_is_known_of_it(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    task = await world.task(task_id)
    unknown = ("start_time", "completion_time", "duration_ms", "result", "error")
    assert [task[name] for name in unknown] == [None] * 5
    assert (task["task_id"], task["status"], task["assigned_agent"]) == (task_id, "queued", agent)
    claim = await world.claim(agent)
    task = await world.task(task_id)
    assert task["start_time"] == claim["start_time"]
    assert (task["status"], task["completion_time"]) == ("executing", None)
    world.clock.advance(seconds=2.5)
    await world.admin.post(f"{PATH}/{task_id}/complete", json={"epoch": claim["epoch"], "result": [1]})
    task = await world.task(task_id)
    assert (task["status"], task["duration_ms"], task["result"], task["error"]) == ("completed", 2500, [1], None)
    assert task["start_time"] < task["completion_time"]


@requirement("tasks.id-is-never-a-path", "tasks.unknown-id-404", "tasks.read-bad-length-404")
@pytest.mark.parametrize(
    "task_id", ["nobody", "%2E%2E%2Fx", "a%2Fb", "%00", "a" * 256, "a" * 300, "%20", "'%20or%201=1"]
)
async def test_an_unknown_id_is_404_whatever_it_looks_like(world: World, task_id: str) -> None:
    for verb in ("", "/cancel", "/retry", "/approve", "/reject", "/activity"):
        method = "GET" if verb in ("", "/activity") else "POST"
        answer = await world.admin.request(method, f"{PATH}/{task_id}{verb}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND"), verb


@requirement("tasks.read-bad-length-404")
async def test_an_empty_id_is_404(world: World) -> None:
    answer = await world.admin.get(f"{PATH}/")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")


async def test_tasks_with_long_inputs_are_inserted_one_by_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # PostgreSQL takes statements of at most a gigabyte, and a commit may hold 128 tasks.
    inserted: list[int] = []
    writes: list[Any] = []
    db = world.kernel.infra.db
    take, write = PendingRows.take, db.write

    def recorded(rows: PendingRows, *used: Any) -> Any:
        inserts, *others = take(rows, *used)
        inserted.extend(len(found) for table, found in inserts if table.table == "tasks")
        return inserts, *others

    def counted(*arguments: Any, **options: Any) -> Any:
        writes.append(arguments)
        return write(*arguments, **options)

    monkeypatch.setattr(PendingRows, "take", recorded)
    monkeypatch.setattr(store, "LONG_INPUT", 1_000)
    await world.register()
    holding, go_on = await held(db)
    monkeypatch.setattr(db, "write", counted)
    submits = [asyncio.create_task(world.submit(input="long " * 1_000)) for _ in range(5)]
    await soon(lambda: len(writes) >= len(submits))
    await asyncio.sleep(0)  # handed over to the writer
    go_on.set()
    await asyncio.gather(holding, *submits)
    assert inserted == [1] * len(submits)
    assert await total(world) == len(submits)
