"""Records are found by a part of their id: what a list shows, typed as it is or only its beginning."""

from __future__ import annotations

import pytest

from stentor.core import ids
from tests.conftest import World
from tests.requirements import requirement


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("0198c0de-0000-7000-8000-00000000abcd", True),
        ("0198c0de", True),
        ("00000000abcd", True),
        ("0000", True),
        ("abcd", True),
        ("8000-0000", False),
        ("7000", False),
        ("", True),
    ],
)
def test_a_part_of_an_id_is_its_beginning_its_end_or_that_of_its_last_group(part: str, expected: bool) -> None:
    assert ids.matches_part("0198c0de-0000-7000-8000-00000000abcd", part) is expected


@requirement("tasks.references")
async def test_the_front_of_the_shown_part_of_an_id_finds_the_record(world: World) -> None:
    agent = await world.register()
    task = await world.submit()
    session = (await world.admin.post("/api/v1/sessions", json={})).json()["session_id"]
    for path, name, record_id in (
        ("registry/agents", "agents", agent),
        ("tasks", "tasks", task),
        ("sessions", "sessions", session),
    ):
        shown = record_id.rpartition("-")[2]
        for ref in (shown, shown[:7], shown[4:], record_id[:-3]):
            found = (await world.admin.get(f"/api/v1/{path}", params={"ref": ref})).json()[name]
            assert [record_id in row.values() for row in found] == [True], (path, ref)
        missing = await world.admin.get(f"/api/v1/{path}", params={"ref": shown[:-1] + "x"})
        assert missing.json()[name] == []


@requirement("tasks.references")
async def test_an_agent_with_exactly_this_name_goes_before_those_whose_id_begins_or_ends_so(world: World) -> None:
    first = await world.register("first")
    named = await world.register(first[:2])
    for archived in (False, True):
        if archived:
            await world.admin.post(f"/api/v1/registry/agents/{named}/archive", json={})
        found = (await world.admin.get("/api/v1/registry/agents", params={"ref": first[:2]})).json()["agents"]
        assert [agent["agent_id"] for agent in found] == [named]
