"""What is kept of documents, and the way back to it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from stentor.core.clock import SECOND, format_iso
from stentor.core.db import Database, Sql
from stentor.domains.memory import store
from stentor.testing import FixedClock
from tests.domains.memory.conftest import Notes
from tests.domains.messaging.test_agents import all_events
from tests.patience import soon
from tests.requirements import requirement

ALL = Sql("select path, content_hash from memory_versions order by path, content_hash")


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


async def test_versions_without_a_cause_were_found_edited_or_written(notes: Notes) -> None:
    (notes.root / "a.md").write_text("found")
    await notes.write("a.md", "written", frontmatter={})
    notes.world.clock.advance(seconds=1)
    (notes.root / "a.md").write_text("edited")
    await notes.write("a.md", "written again", frontmatter={})
    before_causes = Sql("update memory_versions set cause = null")
    await notes.world.kernel.infra.db.write(lambda tx: tx.run(before_causes))
    causes = [version["cause"] for version in await versions(notes, "a.md")]
    assert causes == ["written", "edited", "written", "found"]


@requirement("memory.read-only-notes")
async def test_what_a_read_only_note_did_not_take_is_no_version_of_it(notes: Notes) -> None:
    for text in ("one", "two"):
        assert (await notes.write("a.md", text)).status_code == 200
        notes.world.clock.advance(seconds=1)
    (notes.root / "a.md").chmod(0o444)
    # The last one was a version already.
    for text in ("three", "one"):
        assert (await notes.write("a.md", text)).status_code == 409
        notes.world.clock.advance(seconds=1)
    found = await versions(notes, "a.md")
    texts = {(await one(notes, "a.md", version["version"]))["content"] for version in found}
    assert (texts, len(found)) == ({"one", "two"}, 2)


@requirement("memory.versions-in-order")
async def test_versions_are_in_the_order_in_which_they_were_there_and_keep_their_times(notes: Notes) -> None:
    texts, start = [f"text {n}" for n in range(9)], notes.world.clock.now()
    for text in texts:
        await notes.write("a.md", text)
        # Less than makes the watcher, if it is late, take an older write of the service for an edit.
        notes.world.clock.advance(seconds=1)
    found = await versions(notes, "a.md")
    assert [(await one(notes, "a.md", v["version"]))["content"] for v in found] == texts[::-1]
    times = [format_iso(start + n * SECOND) for n in range(9)]
    assert [v["created_at"] for v in found] == times[::-1]
    notes.world.clock.advance(seconds=60)
    (notes.root / "a.md").write_text("text 3")
    await notes.write("a.md", "text 9")
    found = await versions(notes, "a.md")
    contents = [(await one(notes, "a.md", v["version"]))["content"] for v in found]
    assert contents[:3] == ["text 9", "text 3", "text 8"], "somebody went back to an old state by hand"


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


async def test_the_newest_fifty_versions_of_each_note_stay(db: Database, clock: FixedClock) -> None:
    for n in range(store.MAX_VERSIONS + 3):
        await db.write(lambda tx, n=n: store.save_version(tx, "a.md", f"{n:064}", b"x", "bus"))
        clock.advance(seconds=1)
    await db.write(lambda tx: store.save_version(tx, "b.md", "f" * 64, b"x", "bus"))
    await db.write(lambda tx: store.prune_versions(tx, ["a.md", "b.md"]))
    kept = await db.read(lambda tx: tx.rows(ALL))
    assert kept == [("a.md", f"{n:064}") for n in range(3, store.MAX_VERSIONS + 3)] + [("b.md", "f" * 64)]


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 50_000])
async def test_a_version_of_any_length_is_kept_byte_for_byte(db: Database, size: int) -> None:
    content = (b"".join(bytes([n % 256, n % 7]) for n in range(25_000)))[:size]
    await db.write(lambda tx: store.save_version(tx, "a.md", "0" * 64, content, "vault"))
    assert await db.read(lambda tx: store.read_version(tx, "a.md", "0" * 64)) == content


@pytest.mark.parametrize("version", ["a%00b", "%00", "0" * 5000])
async def test_what_is_no_version_is_not_found(notes: Notes, version: str) -> None:
    await notes.write("a.md")
    answer = await notes.world.admin.get(f"/api/v1/memory/versions/{version}", params={"path": "a.md"})
    assert answer.status_code == 404, answer.text
    assert await name(notes, version, "first") == 404


async def name(notes: Notes, version: str, given: str | None, path: str = "a.md", client: str = "ADMIN") -> int:
    answer = await notes.world.clients[client].put(
        f"/api/v1/memory/versions/{version}/name", json={"path": path, "name": given}
    )
    return answer.status_code


@requirement("memory.named-versions")
async def test_a_version_with_a_name_is_kept_however_many_follow_it(notes: Notes) -> None:
    for number in range(3):
        await notes.write("a.md", f"text {number}")
        notes.world.clock.advance(seconds=60)
    first, second = (row["version"] for row in (await versions(notes, "a.md"))[:0:-1])
    assert await name(notes, first, "  before the rewrite ") == 200
    assert await name(notes, second, "to be forgotten") == 200
    assert await name(notes, second, None) == 200
    for number in range(3, store.MAX_VERSIONS + 5):
        await notes.write("a.md", f"text {number}")
        notes.world.clock.advance(seconds=60)

    async def pruned() -> bool:
        return len(await versions(notes, "a.md")) == store.MAX_VERSIONS + 1

    await soon(pruned)
    kept = {row["version"]: row["name"] for row in await versions(notes, "a.md")}
    assert [version for version, given in kept.items() if given] == [first]
    assert kept[first] == "before the rewrite"
    assert second not in kept
    assert (await one(notes, "a.md", first))["content"] == "text 0"
    await notes.write("a.md", "text 0")
    assert (await versions(notes, "a.md"))[0]["name"] == "before the rewrite", "the same text again keeps its name"


@requirement("memory.named-versions")
async def test_names_of_versions_are_checked_bounded_and_recorded(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_NAMED_VERSIONS", 2)
    for text in ("one", "two", "three"):
        await notes.write("a.md", text)
        notes.world.clock.advance(seconds=1)
    found = [row["version"] for row in await versions(notes, "a.md")]
    assert [await name(notes, version, "x") for version in found] == [200, 200, 409]
    assert await name(notes, found[0], "y") == 200, "another name for a version that has one"
    for version, path in (("0" * 64, "a.md"), (found[0], "none.md"), ("a%00b", "a.md"), ("%F0%9F%98%80", "a.md")):
        assert await name(notes, version, None, path) in (400, 404)
    for wrong in ("", "   ", "x" * 101, "a\nb", "a\0b"):
        assert await name(notes, found[0], wrong) == 400, wrong
    assert await name(notes, found[0], None, "../a.md") == 400
    assert await name(notes, found[0], None, client="READER") == 403
    notes.world.runlog.broken = True
    assert await name(notes, found[0], "unrecorded") == 503
    notes.world.runlog.broken = False
    assert [row["name"] for row in await versions(notes, "a.md")] == ["y", "x", None]
    events = [event for event in await all_events(notes.world) if event["event_type"] == "version_named"]
    assert [json.loads(event["metadata"])["name"] for event in events] == ["x", "x", "y"]
