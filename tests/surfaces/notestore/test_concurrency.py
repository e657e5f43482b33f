"""Many clients on one note: nobody's change is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.requirements import requirement
from tests.surfaces.notestore.running import KEY, NoteStore, note_store

CLIENTS = 32


async def post(addresses: list[str], tool: str, bodies: list[dict[str, object]]) -> list[httpx.Response]:
    """All at once, each with a connection of its own, one address after the other in turn."""
    headers = {"Authorization": f"Bearer {KEY}"}
    limits = httpx.Limits(max_connections=len(bodies))
    async with httpx.AsyncClient(headers=headers, timeout=60, limits=limits, verify=False, trust_env=False) as client:
        calls = (client.post(f"{addresses[i % len(addresses)]}/api/{tool}", json=body) for i, body in enumerate(bodies))
        return await asyncio.gather(*calls)


@requirement("notestore.manage-tags")
@pytest.mark.parametrize("version", [3, 5, 6])
async def test_tags_of_many_clients_are_all_there(store: NoteStore, version: int) -> None:
    store.stub.version = version
    store.write("a.md", "---\ntitle: x\n---\nbody")
    tags = [f"tag-{i}" for i in range(CLIENTS)]
    bodies: list[dict[str, object]] = [{"path": "a.md", "tags": [tag], "action": "add"} for tag in tags]
    answers = await post([store.address], "manageTags", bodies)
    assert {answer.status_code for answer in answers} == {200}
    assert sorted(store.data("manageTags", path="a.md", tags=[], action="add")["tags"]) == sorted(tags)


async def test_two_servers_before_one_plugin_that_compares_lose_nothing(store: NoteStore, tmp_path: Path) -> None:
    store.write("a.md", "body")
    tags = [f"tag-{i}" for i in range(CLIENTS)]
    bodies: list[dict[str, object]] = [{"path": "a.md", "tags": [tag], "action": "add"} for tag in tags]
    with note_store(store.stub, tmp_path / "log") as other:
        answers = await post([store.address, other.address], "manageTags", bodies)
    assert {answer.status_code for answer in answers} == {200}
    assert sorted(store.data("manageTags", path="a.md", tags=[], action="add")["tags"]) == sorted(tags)


async def test_different_tools_on_one_note_lose_nothing(store: NoteStore) -> None:
    store.write("a.md", "".join(f"<{i}>\n" for i in range(10)))
    replace = post(
        [store.address],
        "searchReplace",
        [{"path": "a.md", "search": f"<{i}>", "replace": f"[{i}]"} for i in range(10)],
    )
    append = post([store.address], "appendContext", [{"path": "a.md", "content": f"({i})"} for i in range(10)])
    keys = post([store.address], "manageFrontmatter", [{"path": "a.md", "key": f"k{i}", "value": i} for i in range(10)])
    for answers in await asyncio.gather(replace, append, keys):
        assert {answer.status_code for answer in answers} == {200}
    text = store.text("a.md")
    for i in range(10):
        assert f"[{i}]" in text
        assert f"({i})" in text
        assert f"k{i}: {i}\n" in text
