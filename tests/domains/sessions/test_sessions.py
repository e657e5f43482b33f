"""Sessions over HTTP: their items, their values, who may use them, and what is stored of them."""

from __future__ import annotations

import asyncio
import base64
from typing import Any
from urllib.parse import quote

import pytest

from stentor.core.db import Sql
from tests.conftest import World
from tests.requirements import requirement

PATH = "/api/v1/sessions"
LONG = "x" * 5_000


async def call(world: World, method: str, path: str = "", who: str = "ADMIN", status: int = 200, **options: Any) -> Any:
    answer = await world.clients[who].request(method, PATH + path, **options)
    assert answer.status_code == status, answer.text
    return answer.json()


async def create(world: World, session_id: str = "s", who: str = "ADMIN") -> Any:
    return await call(world, "POST", who=who, status=201, json={"id": session_id})


async def append(world: World, *values: Any, to: str = "s", status: int = 200, **fields: Any) -> Any:
    body = {"items": [{"value": value} for value in values], **fields}
    return await call(world, "POST", f"/{to}/items", status=status, json=body)


async def items(world: World, of: str = "s", **params: Any) -> list[Any]:
    return [item["value"] for item in (await call(world, "GET", f"/{of}/items", params=params))["items"]]


async def count_contents(world: World) -> int:
    return int((await world.kernel.infra.db.read(lambda tx: tx.rows(Sql("select count(*) from step_values"))))[0][0])


@requirement("sessions.items")
async def test_items_are_read_as_they_were_appended_from_either_end(world: World) -> None:
    await create(world)
    values = [{"role": "user", "content": "Grüße"}, LONG, 3, None, [1.5, {"a": []}], ""]
    made = await append(world, *values)
    assert (made["item_count"], made["stored_bytes"] > len(LONG)) == (len(values), True)
    assert await items(world) == values
    assert await items(world, limit=2) == values[:2]
    first = await call(world, "GET", "/s/items", params={"limit": 4})
    assert await items(world, after=first["next_after"]) == values[4:]
    assert await items(world, newest=True, limit=2) == values[-2:]
    assert await items(world, before=first["items"][2]["position"], limit=1) == values[1:2]
    last = await call(world, "GET", "/s/items", params={"limit": 6})
    assert (last["next_after"], last["item_count"]) == (None, 6)


@requirement("sessions.items")
@pytest.mark.parametrize("session_id", [".", ".."])
async def test_a_session_that_no_path_can_name_is_not_created(world: World, session_id: str) -> None:
    answer = await call(world, "POST", status=400, json={"id": session_id})
    assert "must not be . or .." in answer["error"]["message"]
    await create(world, "...")
    assert (await call(world, "GET", "/..."))["session_id"] == "..."


@requirement("sessions.items")
async def test_of_many_who_expect_the_same_items_one_appends(world: World) -> None:
    await create(world)
    answers = await asyncio.gather(
        *(
            world.admin.post(f"{PATH}/s/items", json={"items": [{"value": n}, {"value": n}], "expected_count": 0})
            for n in range(8)
        )
    )
    assert sorted(answer.status_code for answer in answers) == [200] + 7 * [409]
    error = next(answer for answer in answers if answer.status_code == 409).json()["error"]
    assert error["details"] == {"item_count": 2, "expected_count": 0}
    one, other = await items(world)
    assert one == other


@requirement("sessions.items")
async def test_a_change_that_is_repeated_with_its_key_is_made_once(world: World) -> None:
    await create(world)
    await create(world, "other")
    key = {"headers": {"Idempotency-Key": "k1"}}
    body = {"items": [{"value": 1}, {"value": LONG}], "expected_count": 0}
    first, *more = await asyncio.gather(*(call(world, "POST", "/s/items", json=body, **key) for _ in range(4)))
    assert more == 3 * [first]
    assert await items(world) == [1, LONG]
    popped = await call(world, "POST", "/s/pop", **key)
    await append(world, 3)
    assert await call(world, "POST", "/s/pop", **key) == popped
    assert (popped["item"]["value"], await items(world)) == (LONG, [1, 3])
    reused = await call(world, "POST", "/s/items", status=422, json={"items": [{"value": 2}]}, **key)
    assert reused["error"]["code"] == "IDEMPOTENCY_KEY_REUSED"
    await call(world, "POST", "/other/items", status=422, json=body, **key)
    assert await items(world, "other") == []


@requirement("sessions.items")
async def test_a_key_of_a_deleted_session_is_not_one_of_a_new_session_of_its_id(world: World) -> None:
    await create(world)
    key = {"headers": {"Idempotency-Key": "k1"}}
    body = {"items": [{"value": 1}]}
    await call(world, "POST", "/s/items", json=body, **key)
    await call(world, "POST", "/s/pop", **key)
    await call(world, "DELETE", "/s")
    world.clock.advance(seconds=1)
    await create(world)
    await call(world, "POST", "/s/items", status=422, json=body, **key)
    await call(world, "POST", "/s/pop", status=422, **key)


@requirement("sessions.items")
async def test_appends_at_once_lose_nothing(world: World) -> None:
    await create(world)
    await asyncio.gather(*(append(world, n, [n]) for n in range(20)))
    values = await items(world, limit=1000)
    assert sorted(values[::2]) == list(range(20))
    assert [[value] for value in values[::2]] == values[1::2]
    assert (await call(world, "GET", "/s"))["item_count"] == 40


@requirement("sessions.items")
async def test_the_last_item_is_taken_back_and_its_place_is_not_used_again(world: World) -> None:
    await create(world)
    await append(world, 1, LONG)
    popped = (await call(world, "POST", "/s/pop"))["item"]
    assert (popped["value"], popped["position"], await count_contents(world)) == (LONG, 2, 0)
    await append(world, 3)
    page = await call(world, "GET", "/s/items")
    assert [(item["position"], item["value"]) for item in page["items"]] == [(1, 1), (3, 3)]
    for expected in (3, 1, None):
        item = (await call(world, "POST", "/s/pop"))["item"]
        assert (item and item["value"]) == expected
    session = await call(world, "GET", "/s")
    assert (session["item_count"], session["stored_bytes"]) == (0, 0)


@requirement("sessions.values")
async def test_values_are_set_together_and_listed_by_prefix_and_by_age(world: World) -> None:
    await create(world)
    blob = base64.b64encode(bytes(range(256)) * 40).decode()
    keys = ["b/1", "a/2", "a/10", "a/Ä", "A/x", "a"]
    for number, key in enumerate(keys):
        await call(world, "PUT", "/s/values", json={"values": {key: {"n": number}}})
    await call(world, "PUT", "/s/values", json={"values": {"a/2": [LONG]}, "bytes": {"b/2": blob, "b/3": "AAE="}})
    one = await call(world, "GET", "/s/values/a%2F2")
    assert (one["value"], one["encoding"]) == ([LONG], "json")
    many = await call(world, "GET", "/s/values", params=[("key", "b/2"), ("key", "none"), ("key", "b/3")])
    assert [(value["value"], value["encoding"]) for value in many["values"]] == [(blob, "base64"), ("AAE=", "base64")]
    assert await keys_of(world, prefix="a/") == ["a/10", "a/2", "a/Ä"]
    assert await keys_of(world) == ["A/x", "a", "a/10", "a/2", "a/Ä", "b/1", "b/2", "b/3"]
    assert await keys_of(world, prefix="a", order="newest") == ["a/2", "a", "a/Ä", "a/10"]
    session = await call(world, "GET", "/s")
    assert session["value_count"] == 8
    missing = await world.admin.get(f"{PATH}/s/values/none")
    assert missing.status_code == 404


async def keys_of(world: World, **params: Any) -> list[str]:
    """Return the keys of all pages of two."""
    keys: list[str] = []
    cursor: str | None = None
    while True:
        more: dict[str, Any] = {} if cursor is None else {"cursor": cursor}
        page = await call(world, "GET", "/s/values", params={**params, **more, "limit": 2})
        keys += [value["key"] for value in page["values"]]
        cursor = page["next_cursor"]
        if cursor is None:
            return keys


@requirement("sessions.values")
async def test_some_values_that_are_too_long_together_are_refused(world: World) -> None:
    await create(world)
    for key in "abcdefghi":
        await call(world, "PUT", "/s/values", json={"values": {key: key * 950_000}})
    refused = await call(world, "GET", "/s/values", status=400, params=[("key", key) for key in "abcdefghi"])
    assert "8,550,018 bytes together" in refused["error"]["message"]
    assert [len(one["key"]) for one in (await call(world, "GET", "/s/values", params={"key": "a"}))["values"]] == [1]
    assert (await call(world, "GET", "/s/values"))["next_cursor"] is not None


@requirement("sessions.values")
async def test_a_batch_with_one_wrong_value_sets_none(world: World) -> None:
    await create(world)
    for body in (
        {"values": {"a": 1}, "bytes": {"b": "no base64"}},
        {"values": {"a": 1}, "bytes": {"a": "AAE="}},
        {"values": {"a": 1, "b\n": 2}},
        {},
    ):
        await call(world, "PUT", "/s/values", status=400, json=body)
    world.runlog.broken = True
    assert (await call(world, "GET", "/s/values"))["values"] == []


@requirement("sessions.contents")
async def test_a_content_is_stored_once_and_goes_with_the_last_that_refers_to_it(world: World) -> None:
    for name in ("s", "t"):
        await create(world, name)
        await append(world, LONG, LONG, to=name)
    await call(world, "PUT", "/t/values", json={"values": {"k": LONG, "other": [LONG]}})
    assert await count_contents(world) == 2
    await call(world, "DELETE", "/s")
    assert await items(world, of="t") == [LONG, LONG]
    await call(world, "POST", "/t/clear", json={"items": True})
    assert await count_contents(world) == 2
    assert (await call(world, "GET", "/t/values/k"))["value"] == LONG
    await call(world, "PUT", "/t/values", json={"values": {"k": 1}})
    assert await count_contents(world) == 1
    cleared = await call(world, "POST", "/t/clear", json={"values": "o"})
    assert (cleared["value_count"], cleared["stored_bytes"], await count_contents(world)) == (1, 1, 0)


@requirement("sessions.contents")
async def test_a_content_that_comes_while_it_is_removed_is_not_lost(world: World) -> None:
    await create(world)
    await create(world, "t")
    for _ in range(10):
        await append(world, LONG)
        await asyncio.gather(call(world, "POST", "/s/clear", json={"items": True}), append(world, LONG, to="t"))
        assert (await items(world, of="t"))[-1] == LONG
        await call(world, "POST", "/t/clear", json={"items": True})


@requirement("sessions.rights")
async def test_an_agents_key_uses_its_own_sessions_alone(world: World) -> None:
    await create(world, "people")
    await create(world, "bobs", who="BOB")
    requests: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("PATCH", "", {"name": "n"}),
        ("GET", "/items", None),
        ("POST", "/items", {"items": [{"value": 1}]}),
        ("POST", "/pop", None),
        ("POST", "/clear", {"items": True}),
        ("GET", "/values", None),
        ("PUT", "/values", {"values": {"a": 1}}),
        ("GET", "/values/a", None),
    ]
    for method, path, body in requests:
        for who, session in (("BOB", "people"), ("OTHER", "bobs"), ("OTHER", "people")):
            await call(world, method, f"/{session}{path}", who, 404, json=body)
    await call(world, "POST", who="BOB", status=409, json={"id": "people"})
    assert [one["session_id"] for one in (await call(world, "GET", who="BOB"))["sessions"]] == ["bobs"]
    assert (await call(world, "GET", who="OTHER"))["sessions"] == []
    assert (await call(world, "GET", "/bobs"))["created_by"] == "bob"


@requirement("sessions.rights")
async def test_a_deletion_is_in_the_audit(world: World) -> None:
    await create(world, "a b/c")
    await append(world, 1, to="a%20b%2Fc")
    assert (await call(world, "DELETE", "/a%20b%2Fc")) == {"session_id": "a b/c", "deleted": True}
    await call(world, "DELETE", "/a%20b%2Fc", status=404)
    answer = await world.admin.get("/api/v1/audit", params={"category": "changes"})
    assert "Session a b/c deleted." in answer.text


@requirement("sessions.items")
async def test_a_session_is_made_once_and_listed_by_its_last_change(world: World) -> None:
    for name in "abc":
        assert (await create(world, name))["created"] is True
        world.clock.advance(seconds=1)
    assert (await create(world, "a"))["created"] is False
    await call(world, "PATCH", "/b", json={"name": "B", "metadata": {"x": 1}})
    first = await call(world, "GET", params={"limit": 2})
    rest = await call(world, "GET", params={"limit": 2, "cursor": first["next_cursor"]})
    assert [one["session_id"] for one in first["sessions"] + rest["sessions"]] == ["b", "c", "a"]
    assert first["sessions"][0]["metadata"] == {"x": 1}
    await call(world, "PATCH", "/b", status=400, json={"metadata": {"x": "y" * 20_000}})


@requirement("sessions.reference", "sessions.rights")
async def test_sessions_are_found_by_a_part_of_their_id_and_by_name(world: World) -> None:
    for session_id in ("team/a", "team/b", "b", "Ä%_"):
        await create(world, session_id)
        world.clock.advance(seconds=1)
    await call(world, "POST", status=201, json={"id": "other", "name": "team/a"})
    await call(world, "POST", who="OTHER", status=201, json={"id": "team/c"})

    async def found(ref: str, who: str = "ADMIN", **params: Any) -> list[str]:
        page = await call(world, "GET", who=who, params={"ref": ref, **params})
        assert page["next_cursor"] is None
        return [session["session_id"] for session in page["sessions"]]

    assert await found("team/") == ["team/b", "team/a"]
    assert await found("b") == ["b", "team/b"]
    assert await found("team/a") == ["team/a", "other"]
    assert await found("team/", limit=1) == ["team/b"]
    assert await found("Ä") == ["Ä%_"]
    for nothing in ("%", "TEAM/", "eam/", "team/c"):
        assert await found(nothing) == []
    assert await found("team/", "OTHER") == ["team/c"]
    await create(world, "team/bob", "BOB")
    assert await found("team/", "BOB") == ["team/bob"]  # bound to its agents
    cursor = (await call(world, "GET", params={"limit": 1}))["next_cursor"]
    await call(world, "GET", status=400, params={"ref": "b", "cursor": cursor})


@requirement("sessions.tasks")
async def test_the_tasks_of_a_session_are_listed_whatever_became_of_them(world: World) -> None:
    agent = await world.register()
    await create(world, "a/b")
    await create(world, "other")
    done = await world.submit(session="a/b")
    claim = await world.claim(agent)
    ended = {"epoch": claim["epoch"], "result": "hi"}
    assert (await world.admin.post(f"/api/v1/tasks/{done}/complete", json=ended)).status_code == 200
    world.clock.advance(seconds=1)
    failed = await world.submit(session="a/b", title="Lost parcel")
    claim = await world.claim(agent)
    fail = {"epoch": claim["epoch"], "error": {"message": "no"}}
    assert (await world.admin.post(f"/api/v1/tasks/{failed}/fail", json=fail)).status_code == 200
    world.clock.advance(seconds=1)
    queued = await world.submit(session="a/b", limit={"key": "own", "max": 3})
    await world.submit(session="other")
    await world.submit()

    async def listed(**params: Any) -> list[str]:
        answer = await world.admin.get("/api/v1/tasks", params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert page["total"] == len(page["tasks"])
        return [task["task_id"] for task in page["tasks"]]

    assert await listed(session="a/b") == [queued, failed, done]
    assert await listed(session="a/b", status="failed") == [failed]
    assert await listed(session="a/b", submitted_by="admin", created_after="2020-01-01T00:00:00Z", type="echo") == [
        *(queued, failed, done)
    ]
    assert await listed(session="none") == []
    world.clock.advance(seconds=1)
    rerun = (await world.admin.post(f"/api/v1/tasks/{failed}/rerun")).json()["task_id"]
    assert await listed(session="a/b", status="queued") == [rerun, queued]
    bob = await world.clients["BOB"].get("/api/v1/tasks", params={"session": "a/b"})
    assert bob.json()["tasks"] == []
    for wrong in ({"ref": "x"}, {"parent_task_id": "x"}):
        answer = await world.admin.get("/api/v1/tasks", params={"session": "a/b", **wrong})
        assert answer.status_code == 400


@requirement("sessions.values")
async def test_the_link_to_the_next_page_keeps_any_id(world: World) -> None:
    await create(world, "a/漢 ?#%")
    path = f"{PATH}/{quote('a/漢 ?#%', safe='')}/values"
    assert (await world.admin.put(path, json={"values": {"one": 1, "two": 2}})).status_code == 200
    first = await world.admin.get(path, params={"limit": 1, "prefix": ""})
    assert first.status_code == 200, first.text
    second = await world.admin.get(first.links["next"]["url"])
    assert [value["key"] for value in second.json()["values"]] == ["two"]


@requirement("sessions.builtin")
async def test_a_builtin_agent_says_that_it_does_not_continue_the_session_of_its_task(world: World) -> None:
    await create(world)
    await world.register("sum", capabilities=["sum"], runtime={"kind": "builtin", "name": "summarizer"})
    body = {"type": "sum", "input": "One. Two.", "required_capabilities": ["sum"], "session": "s", "id": "t"}
    sent = (await world.admin.post("/api/v1/tasks", json=body)).json()
    notice = "sum is a builtin agent, which neither reads nor extends the session 's'"
    assert (sent["notice"], sent["notice_code"]) == (notice, "SESSION_UNUSED")
    assert (await world.admin.post("/api/v1/tasks", json=body)).json() == sent
    assert (await world.task("t"))["notice_code"] == "SESSION_UNUSED"
    await world.register("ann")
    other = (await world.admin.post("/api/v1/tasks", json=body | {"id": "u", "required_capabilities": ["echo"]})).json()
    assert other["notice_code"] != "SESSION_UNUSED", "a worker may read the session"
