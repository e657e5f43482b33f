"""Titles of tasks: given by the submitter, or taken from the input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.db import NO_LOCKS, Sql
from stentor.core.validation.text_checks import is_readable
from stentor.domains.tasks.submission.drafts import DERIVED_CHARACTERS, MAX_TITLE_CHARACTERS, derive_title
from tests.conftest import World
from tests.requirements import requirement

_FORGET_TITLES = Sql("update tasks set title = null")
JOINED = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645, a family: \U0001f469\u200d\U0001f467"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@requirement("tasks.titles")
@pytest.mark.parametrize(
    ("task_input", "title"),
    [
        ("Summarize the report of May.", "Summarize the report of May."),
        ("\n\n  ## Pay  the\tinvoice\nby Friday", "Pay the invoice"),
        ("---\n\n***\nThe first line with words", "The first line with words"),
        ({"text": "Long body", "subject": "Refund for order 71"}, "Refund for order 71"),
        ({"id": 3, "colour": "dark red"}, "dark red"),
        ({"payload": {"x": 1}, "task": {"question": "Who wrote it?"}}, "Who wrote it?"),
        ({"messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": "And now?"}]}, "And now?"),
        ([{"role": "user", "content": [{"type": "text", "text": "What is this?"}]}], "What is this?"),
        (["first.md", "second.md"], "first.md"),
        ({"url": "https://example.org/a/b?page=2"}, "https://example.org/a/b?page=2"),
        ({"question": "739860a8-cd82-4f69-b146-1e97148d29db", "text": "A question"}, "A question"),
        ("739860a8-cd82-4f69-b146-1e97148d29db", "review"),
        ("deadbeef" * 8, "review"),
        ("A" * 4_000, "review"),
        ("12 / 7", "review"),
        ("", "review"),
        ("\x1b[31m\x00", "[31m"),
        (JOINED, JOINED),
        ("\u200d", "review"),
        (None, "review"),
        (7, "review"),
        ({}, "review"),
        ([[[[[["too deep"]]]]]], "review"),
    ],
)
def test_title_is_the_first_readable_text_of_the_input(task_input: Any, title: str) -> None:
    assert derive_title("review", task_input) == title


def test_long_title_ends_between_words() -> None:
    title = derive_title("review", "one two three, " * 20)
    assert title == "one two three, " * 5 + "one…"


@given(JSON)
def test_title_of_any_input_is_one_short_printable_line(task_input: Any) -> None:
    title = derive_title("review", task_input)
    assert 0 < len(title) <= DERIVED_CHARACTERS
    assert all(map(is_readable, title))


@requirement("tasks.titles")
async def test_tasks_have_their_title_in_lists_and_alone(world: World) -> None:
    await world.register(capabilities=["summarize"])
    body = {"type": "summarize", "input": {"text": "The report of May"}, "required_capabilities": ["summarize"]}
    derived = (await world.admin.post("/api/v1/tasks", json=body)).json()["task_id"]
    given_title = (await world.admin.post("/api/v1/tasks", json=body | {"title": JOINED})).json()["task_id"]
    rows = (await world.admin.get("/api/v1/tasks")).json()["tasks"]
    assert {row["task_id"]: row["title"] for row in rows} == {derived: "The report of May", given_title: JOINED}
    assert (await world.admin.get(f"/api/v1/tasks/{derived}")).json()["title"] == "The report of May"


async def test_task_from_before_titles_shows_its_type(world: World) -> None:
    await world.register(capabilities=["summarize"])
    task_id = await world.submit(type="translate", required_capabilities=[])
    await world.kernel.infra.db.write(lambda tx: tx.run(_FORGET_TITLES), NO_LOCKS)
    assert (await world.admin.get(f"/api/v1/tasks/{task_id}")).json()["title"] == "translate"
    assert (await world.admin.get("/api/v1/tasks")).json()["tasks"][0]["title"] == "translate"


@pytest.mark.parametrize("title", ["", "x" * (MAX_TITLE_CHARACTERS + 1), "two\nlines", 7, "\u200d", "a\u202eb"])
async def test_invalid_title_is_rejected(world: World, title: Any) -> None:
    response = await world.admin.post("/api/v1/tasks", json={"type": "x", "input": 1, "title": title})
    assert response.status_code == 400
    assert "title" in response.text


async def test_title_is_part_of_what_an_id_stands_for(world: World) -> None:
    await world.register(capabilities=["summarize"])
    body = {"id": "may", "type": "summarize", "input": "x", "required_capabilities": ["summarize"]}
    assert (await world.admin.post("/api/v1/tasks", json=body)).status_code == 202
    assert (await world.admin.post("/api/v1/tasks", json=body | {"title": "Other"})).status_code == 409


@requirement("tasks.references")
async def test_tasks_and_agents_are_found_by_parts_of_their_ids_and_names(world: World) -> None:
    agent = await world.register("ann")
    task_id, other = await world.submit(), await world.submit(id=f"{'x' * 8}")

    async def find(path: str, ref: str) -> list[str]:
        response = await world.admin.get(path, params={"ref": ref})
        assert response.status_code == 200, response.text
        records = response.json()["tasks" if path.endswith("tasks") else "agents"]
        return [record["task_id" if path.endswith("tasks") else "agent_id"] for record in records]

    assert await find("/api/v1/tasks", task_id) == [task_id]
    assert await find("/api/v1/tasks", task_id[-8:]) == [task_id]
    assert await find("/api/v1/tasks", task_id[:20]) == [task_id]
    assert await find("/api/v1/tasks", other) == [other]
    assert await find("/api/v1/tasks", "%") == []
    assert await find("/api/v1/registry/agents", "ann") == [agent]
    assert await find("/api/v1/registry/agents", agent[-8:]) == [agent]
    assert await find("/api/v1/registry/agents", "an") == []
    both = await world.admin.get("/api/v1/tasks", params={"ref": "a", "status": "queued"})
    assert both.status_code == 400


@requirement("tasks.references", "tasks.subtasks")
async def test_agent_keys_find_their_own_tasks_only(world: World) -> None:
    await world.register("ann")
    await world.submit(id="root")
    task_id = await world.submit(metadata={"parent_task_id": "root"})
    for params in ({"ref": task_id}, {"parent_task_id": "root"}):
        for name, found in (("ADMIN", [task_id]), ("BOB", []), ("OTHER", [])):
            rows = (await world.clients[name].get("/api/v1/tasks", params=params)).json()["tasks"]
            assert [row["task_id"] for row in rows] == found, (params, name)


@requirement("tasks.subtasks")
async def test_subtasks_come_in_pages_with_their_number(world: World) -> None:
    await world.register("ann")
    await world.submit(id="root")
    children = [await world.submit(metadata={"parent_task_id": "root"}) for _ in range(5)]
    found, params = list[str](), {"parent_task_id": "root", "limit": "2"}
    while True:
        page = (await world.admin.get("/api/v1/tasks", params=params)).json()
        assert (page["total"], page["total_is_exact"]) == (5, True)
        found += [row["task_id"] for row in page["tasks"]]
        if page["next_cursor"] is None:
            break
        params["cursor"] = page["next_cursor"]
    assert found == children
    first = (await world.admin.get("/api/v1/tasks", params={"ref": children[0][:8], "limit": "1"})).json()
    assert (len(first["tasks"]), first["total_is_exact"], first["next_cursor"]) == (1, False, None)
