"""Marks of agents that write over MCP or from a sandbox, and what they see of the marks of others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stentor.core.errors import Forbidden, InvalidRequest
from stentor.domains.memory.governed.model import ReadAsked, SearchAsked
from stentor.domains.memory.validity import marks
from stentor_vault.text import documents
from tests.conftest import MakeWorld
from tests.domains.memory.conftest import Notes
from tests.domains.memory.test_governed import Governed, authority
from tests.domains.memory.validity.test_invalidation import invalidate, restore
from tests.patience import soon
from tests.requirements import requirement


@pytest.fixture
async def made(make_world: MakeWorld, tmp_path: Path) -> Governed:
    return Governed(await make_world(SERVICE_MEMORY="1"), tmp_path / "vault")


def bus(made: Governed) -> Notes:
    return Notes(made.world, made.root)


@requirement("memory.agents-own-marks")
async def test_an_agent_marks_what_it_may_write_and_nothing_beyond(made: Governed) -> None:
    await made.write("a", "zebra")
    await made.write("b", "zebra", metadata={"derived_from": ["team/a"]})
    marked = {"invalid": "I misread it", "derived_from": []}
    await made.write("a", "zebra", metadata=marked)
    assert await made.found("zebra") == []
    answer = await made.memory.search(authority(), SearchAsked("team", "zebra", include_invalid=True))
    causes = {found.record_id: found.invalid.cause for found in answer.results if found.invalid is not None}
    assert {key: (cause.by, cause.reason) for key, cause in causes.items()} == dict.fromkeys(
        ("team/a", "team/b"), ("agent:ann", "I misread it")
    )
    await made.write("a", "zebra", metadata={})

    async def are_back() -> bool:
        return sorted(await made.found("zebra")) == ["team/a", "team/b"]

    # The event of the write before may still be checked: then the index has that state for a moment.
    await soon(are_back)
    await made.write("c", "zebra", namespace="others", who=authority("others"), metadata={"derived_from": ["[[a]]"]})
    with pytest.raises(Forbidden, match="1 note,"):
        await made.write("a", "zebra", metadata={"invalid": True})
    await made.write("a", "zebra", metadata={"invalid": True}, who=authority("team", "others"))


@requirement("memory.agents-own-marks")
async def test_an_agent_removes_no_mark_of_a_person_even_of_the_same_name(made: Governed) -> None:
    await made.write("a", "zebra")
    await made.write("b", "zebra", metadata={"derived_from": ["https://x.example"]})
    await invalidate(bus(made), note="Memory/team/a.md")
    await invalidate(bus(made), source="https://x.example")
    as_admin = dataclasses.replace(authority(), principal="admin")
    for who in (authority(), as_admin):
        with pytest.raises(Forbidden, match="marked invalid by admin"):
            await made.write("a", "zebra", metadata={}, who=who)
    with pytest.raises(Forbidden, match="remove its sources"):
        await made.write("b", "zebra", metadata={})
    await made.write("b", "zebra lion", metadata={"derived_from": ["https://x.example", "more"]})
    assert await made.found("zebra") == []
    await restore(bus(made), source="https://x.example")
    await made.write("b", "zebra", metadata={})  # it is valid, so its sources are its author's


@requirement("memory.agents-own-marks")
async def test_an_agent_learns_nothing_of_notes_that_it_cannot_read(made: Governed) -> None:
    await made.write("secret", "x", namespace="others", who=authority("others"))
    await made.write("a", "zebra", metadata={"derived_from": ["[[secret]]"]})
    await invalidate(bus(made), note="Memory/others/secret.md", reason="confidential")

    async def is_invalid() -> bool:
        return (await made.memory.read(authority(), ReadAsked("team", "a"))).invalid is not msgspec.UNSET

    # As above, the index may have the state before for a moment.
    await soon(is_invalid)
    read = await made.memory.read(authority(), ReadAsked("team", "a"))
    assert "confidential" not in repr(read.invalid)
    assert "others" not in repr(read.invalid)
    assert (
        msgspec.to_builtins(await made.memory.read(authority("others"), ReadAsked("others", "secret")))["invalid"][
            "cause"
        ]["reason"]
        == "confidential"
    )


@requirement("memory.as-of")
async def test_a_governed_search_asks_for_a_time_and_its_pages_belong_together(made: Governed) -> None:
    await made.write("a", "zebra", metadata={"valid_to": "2026-03-01"})
    await made.write("b", "zebra", metadata={"valid_from": "2026-03-01"})
    assert await made.found("zebra", as_of="2026-02-28") == ["team/a"]
    assert await made.found("zebra") == ["team/b"]
    with pytest.raises(InvalidRequest, match="as_of"):
        await made.found("zebra", as_of="soon")
    await made.write("c", "zebra")
    first = await made.memory.search(authority(), SearchAsked("team", "zebra", limit=1))
    with pytest.raises(InvalidRequest, match="cursor"):
        await made.found("zebra", as_of="2026-02-28", cursor=first.next_cursor)


@requirement("memory.invalidate-source")
@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("x", ["task:1"]),
        ("---\na: 1\n---\nx", ["task:1"]),
        ("---\nderived_from: [[n]]\n---\nx", [["n"], "task:1"]),
        ("---\nderived_from: TASK:1\n---\nx", "TASK:1"),
        ("---\na: [\n---\nx", None),
    ],
)
def test_what_an_agent_writes_in_a_task_names_the_task(text: str, sources: Any) -> None:
    edited = marks.add_source("n.md", text.encode(), "task:1")
    document = documents.parse_document("n.md", edited)
    assert document is not None
    assert document.content == "x"
    assert document.frontmatter.get("derived_from") == sources


async def test_the_copy_of_a_conflict_leaves_with_its_note(made: Governed) -> None:
    notes = bus(made)
    await notes.write("n.md", "zebra one\n")
    await notes.read("n.md", "SECOND")
    await notes.write("n.md", "zebra two\n")
    await invalidate(notes, note="n.md")
    lost = await notes.write("n.md", "zebra three\n", client="SECOND", conflict_resolution="merge")
    assert lost.json()["conflict_copy"] is not None, lost.text
    assert await notes.found("zebra") == []


async def test_the_copy_of_a_conflict_leaves_with_a_note_that_is_out_for_its_sources(made: Governed) -> None:
    notes = bus(made)
    derived = {"derived_from": "https://x.example"}
    await notes.write("n.md", "zebra one\n", frontmatter=derived)
    await invalidate(notes, source="https://x.example")
    await notes.read("n.md", "SECOND")
    await notes.write("n.md", "zebra two\n")
    lost = await notes.write("n.md", "zebra three\n", client="SECOND", frontmatter={}, conflict_resolution="merge")
    assert lost.json()["conflict_copy"] is not None, lost.text
    assert await notes.found("zebra") == []


@requirement("memory.agents-own-marks", "memory.invalidate-source")
async def test_the_copy_of_an_agents_conflict_names_its_task_and_its_marks_are_the_agents(made: Governed) -> None:
    notes = bus(made)
    await made.world.register()
    task = await made.world.submit()
    await notes.write("n.md", "zebra one\n")
    await notes.write("n.md", "zebra two\n")
    own = {"headers": {"X-Task-Id": task}, "client": "BOSS", "conflict_resolution": "merge"}
    forged = {"invalid": "wrong", "invalid_by": "alice"}
    marked = (await notes.write("n.md", "zebra three\n", frontmatter=forged, **own)).json()["conflict_copy"]
    assert 'invalid_by: "agent:boss"' in (made.root / marked).read_text()

    copy = (await notes.write("n.md", "zebra four\n", **own)).json()["conflict_copy"]
    assert sorted(await notes.found("zebra")) == sorted(["n.md", copy])
    await invalidate(notes, source=f"task:{task}")
    assert await notes.found("zebra") == ["n.md"]


@requirement("memory.as-of", "memory.invalid-excluded")
async def test_a_message_searches_another_day_and_what_is_invalid(made: Governed) -> None:
    notes = bus(made)
    await notes.write("a.md", "zebra", frontmatter={"invalid": "wrong"})
    await notes.write("b.md", "zebra", frontmatter={"valid_to": "2026-03-01"})

    async def found(**more: Any) -> list[str]:
        body = {"text": "zebra", "query_type": "keyword", **more}
        header = {"mode": "direct", "context": "x", "priority": "normal", "actionType": "query", "targetZone": "memory"}
        message = {"header": header, "payload": {"content": json.dumps(body)}}
        http = made.world.admin
        sent = await http.post("/api/v1/atp/send", json=message)
        assert sent.status_code == 202, sent.text

        async def known() -> dict[str, Any] | None:
            answer = await http.get(f"/api/v1/atp/response/{sent.json()['messageId']}")
            return dict(answer.json()["data"]["response"]) if answer.status_code == 200 else None

        return sorted(match["path"] for match in (await soon(known))["matches"])

    assert await found() == []
    assert await found(as_of="2026-02-28") == ["b.md"]
    assert await found(include_invalid=True) == ["a.md"]
