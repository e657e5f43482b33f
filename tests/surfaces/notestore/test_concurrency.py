"""Concurrent changes to one note: none is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests.requirements import requirement
from tests.surfaces.notestore.note_store import KEY, NoteStore, run_note_store

CLIENTS = 32


async def post(addresses: list[str], tool: str, bodies: list[dict[str, object]]) -> list[httpx.Response]:
    """Send all requests at once, each on its own connection, to the addresses in turn."""
    headers = {"Authorization": f"Bearer {KEY}"}
    limits = httpx.Limits(max_connections=len(bodies))
    async with httpx.AsyncClient(headers=headers, timeout=200, limits=limits, verify=False, trust_env=False) as client:
        calls = (client.post(f"{addresses[i % len(addresses)]}/api/{tool}", json=body) for i, body in enumerate(bodies))
        return await asyncio.gather(*calls)


@requirement("notestore.manage-tags")
@pytest.mark.parametrize("version", [3, 5, 6])
async def test_tags_added_by_concurrent_clients_are_all_kept(store: NoteStore, version: int) -> None:
    store.stub.version = version
    store.write("a.md", "---\ntitle: x\n---\nbody")
    tags = [f"tag-{i}" for i in range(CLIENTS)]
    bodies: list[dict[str, object]] = [{"path": "a.md", "tags": [tag], "action": "add"} for tag in tags]
    responses = await post([store.address], "manageTags", bodies)
    assert {response.status_code for response in responses} == {200}
    assert sorted(store.data("manageTags", path="a.md", tags=[], action="add")["tags"]) == sorted(tags)


async def test_two_note_stores_on_one_plugin_lose_no_tags(store: NoteStore, tmp_path: Path) -> None:
    store.write("a.md", "body")
    tags = [f"tag-{i}" for i in range(CLIENTS)]
    bodies: list[dict[str, object]] = [{"path": "a.md", "tags": [tag], "action": "add"} for tag in tags]
    with run_note_store(store.stub, tmp_path / "log") as second_store:
        responses = await post([store.address, second_store.address], "manageTags", bodies)
    assert {response.status_code for response in responses} == {200}
    assert sorted(store.data("manageTags", path="a.md", tags=[], action="add")["tags"]) == sorted(tags)


async def test_concurrent_tools_on_one_note_lose_no_change(store: NoteStore) -> None:
    store.write("a.md", "".join(f"<{i}>\n" for i in range(10)))
    replace = post(
        [store.address],
        "searchReplace",
        [{"path": "a.md", "search": f"<{i}>", "replace": f"[{i}]"} for i in range(10)],
    )
    append = post([store.address], "appendContext", [{"path": "a.md", "content": f"({i})"} for i in range(10)])
    keys = post([store.address], "manageFrontmatter", [{"path": "a.md", "key": f"k{i}", "value": i} for i in range(10)])
    for responses in await asyncio.gather(replace, append, keys):
        assert {response.status_code for response in responses} == {200}
    text = store.text("a.md")
    for i in range(10):
        assert f"[{i}]" in text
        assert f"({i})" in text
        assert f"k{i}: {i}\n" in text
