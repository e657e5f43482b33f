"""What is kept of documents, and the way back to it."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.domains.memory.conftest import Notes


async def versions(notes: Notes, path: str, client: str = "ADMIN") -> Any:
    answer = await notes.world.clients[client].get("/api/v1/memory/versions", params={"path": path})
    return answer.json()["versions"] if answer.status_code == 200 else answer.status_code


async def one(notes: Notes, path: str, version: str) -> Any:
    answer = await notes.world.admin.get(f"/api/v1/memory/versions/{version}", params={"path": path})
    return answer.json()["document"] if answer.status_code == 200 else answer.status_code


async def test_every_state_that_a_write_made_or_found_is_kept(notes: Notes) -> None:
    for text in ("one", "two"):
        await notes.write("a.md", text, frontmatter={"n": text})
        notes.world.clock.advance(seconds=1)
    (notes.root / "a.md").write_text("by hand")
    await notes.write("a.md", "three", frontmatter={})
    found = await versions(notes, "a.md")
    assert [(v["origin"], v["current"]) for v in found] == [
        ("bus", True),
        ("vault", False),
        ("bus", False),
        ("bus", False),
    ]
    assert found[0]["version"] == hashlib.sha256((notes.root / "a.md").read_bytes()).hexdigest()
    assert await one(notes, "a.md", found[2]["version"]) == {
        "path": "a.md",
        "content": "two",
        "frontmatter": {"n": "two"},
    }
    assert (await one(notes, "a.md", found[1]["version"]))["content"] == "by hand"


async def test_a_deleted_document_can_be_written_again_as_it_was(notes: Notes) -> None:
    await notes.write("a.md", "precious", frontmatter={"tags": ["x"]})
    await notes.write("a.md", None, "delete")
    found = await versions(notes, "a.md")
    assert [v["current"] for v in found] == [False]
    was = await one(notes, "a.md", found[0]["version"])
    await notes.write("a.md", was["content"], frontmatter=was["frontmatter"])
    assert [v["current"] for v in await versions(notes, "a.md")] == [True]


async def test_what_was_never_there_has_no_versions(notes: Notes) -> None:
    await notes.write("a.md", "x")
    assert await versions(notes, "none.md") == 404
    assert await versions(notes, "../a.md") == 400
    assert await one(notes, "a.md", "0" * 64) == 404
    assert await one(notes, "none.md", "0" * 64) == 404


async def test_versions_need_the_permission_and_the_tenant(notes: Notes) -> None:
    await notes.write("a.md", "x")
    assert [await versions(notes, "a.md", client) for client in ("READER", "OTHER")] == [403, 403]
