"""Values of sessions as a store of state: read from the end, set once, and removed many at a time."""

from __future__ import annotations

import asyncio

from tests.conftest import World
from tests.domains.sessions.test_sessions import LONG, PATH, call, count_contents, create, keys_of
from tests.requirements import requirement


@requirement("sessions.values")
async def test_values_are_listed_from_the_last_key_and_below_a_key(world: World) -> None:
    await create(world)
    keys = ["c//1", "c//2", "c//3", "c//Ä", "c/a/1", "c", "d"]
    await call(world, "PUT", "/s/values", json={"values": {key: key for key in keys}})
    assert await keys_of(world, order="key_descending") == ["d", "c/a/1", "c//Ä", "c//3", "c//2", "c//1", "c"]
    assert await keys_of(world, order="key_descending", prefix="c//") == ["c//Ä", "c//3", "c//2", "c//1"]
    assert await keys_of(world, order="key_descending", prefix="c//", before="c//3") == ["c//2", "c//1"]
    assert await keys_of(world, order="key_descending", prefix="c//", before="a") == []
    assert await keys_of(world, prefix="c//", before="c//3") == ["c//1", "c//2"]
    assert set(await keys_of(world, prefix="c//", before="c//3", order="newest")) == {"c//1", "c//2"}
    page = await call(world, "GET", "/s/values", params={"order": "newest", "limit": 1})
    wrong = {"order": "key_descending", "cursor": page["next_cursor"]}
    await call(world, "GET", "/s/values", status=400, params=wrong)


@requirement("sessions.values")
async def test_a_value_that_is_set_if_absent_is_set_once(world: World) -> None:
    await create(world)
    bodies = [{"values": {"a": n, str(n): n, "long": [n, LONG]}, "if_absent": True} for n in range(8)]
    await asyncio.gather(*(call(world, "PUT", "/s/values", json=body) for body in bodies))
    first = (await call(world, "GET", "/s/values/a"))["value"]
    assert (await call(world, "GET", "/s/values/long"))["value"] == [first, LONG]
    assert (await call(world, "GET", f"/s/values/{first}"))["number"] < 4, "it was the first that was set"
    session = await call(world, "GET", "/s")
    assert (session["value_count"], await count_contents(world)) == (10, 1)
    await call(world, "PUT", "/s/values", json={"values": {"a": "new"}})
    assert (await call(world, "GET", "/s/values/a"))["value"] == "new"


@requirement("sessions.values")
async def test_values_of_several_keys_and_prefixes_are_removed_at_once(world: World) -> None:
    await create(world)
    keys = ["b/1", "b/1 ", "b/10", "b/1/x", "w/1/a", "w/1/b", "w/2/a", "v"]
    await call(world, "PUT", "/s/values", json={"values": {key: [key, LONG] for key in keys}})
    left = await call(world, "POST", "/s/clear", json={"keys": ["b/1", "b/1", "none"], "prefixes": ["w/1/", "w/1"]})
    assert await keys_of(world) == ["b/1 ", "b/1/x", "b/10", "v", "w/2/a"]
    assert (left["value_count"], await count_contents(world)) == (5, 5)
    await call(world, "POST", "/s/clear", json={"values": "b", "prefixes": ["w/"]})
    assert await keys_of(world) == ["v"]
    for wrong in ({"keys": [""]}, {"keys": ["a"] * 1001}, {"prefixes": ["\n"]}):
        await call(world, "POST", "/s/clear", status=400, json=wrong)
    assert (await call(world, "POST", "/s/clear", json={"prefixes": [""]}))["stored_bytes"] == 0


@requirement("sessions.values")
async def test_a_session_takes_values_as_long_as_a_body_may_be(world: World) -> None:
    await create(world)
    long = "a" * 8_000_000
    assert (await call(world, "PUT", "/s/values", json={"bytes": {"a": long}}))["stored_bytes"] == 6_000_000
    await call(world, "PUT", "/s/values", status=413, json={"bytes": {"b": long, "c": long}})
    assert await keys_of(world) == ["a"]


@requirement("sessions.values")
async def test_the_link_to_the_next_page_works_for_any_id(world: World) -> None:
    await create(world, "a/b Ä 語")
    path = "/a%2Fb%20%C3%84%20%E8%AA%9E/values"
    await call(world, "PUT", path, json={"values": {"ä": 1, "ö": 2}})
    page = await world.admin.get(f"{PATH}{path}", params={"limit": 1, "prefix": ""})
    assert page.status_code == 200, page.text
    following = await world.admin.get(page.links["next"]["url"])
    assert [[value["key"] for value in one.json()["values"]] for one in (page, following)] == [["ä"], ["ö"]]
