"""Versions of notes that people edit or delete on disk, in Obsidian or any other editor."""

from __future__ import annotations

import shutil
from typing import Any

from tests.domains.memory.conftest import Notes
from tests.domains.memory.test_history import one, versions
from tests.patience import soon
from tests.requirements import requirement

NOTE = "\ufeff---\r\ntags: [plan]   # kept\r\nowner: 'Zoë'\r\n---\r\n# Plan\r\n\r\nfirst zebra\r\n"


async def until_listed(notes: Notes, path: str, texts: list[str]) -> list[Any]:
    """Wait until the versions of a note, newest first, contain these texts."""
    found: list[Any] = []

    async def so() -> bool:
        listed = await versions(notes, path)
        contents = [] if listed == 404 else [(await one(notes, path, v["version"]))["content"] for v in listed]
        found[:] = [] if listed == 404 else listed
        return len(contents) == len(texts) and all(t in c for t, c in zip(texts, contents, strict=True))

    await soon(so, lambda: f"{path} has the versions {found}")
    return found


@requirement("memory.versions-of-disk-edits")
async def test_a_note_that_the_service_never_touched_has_the_version_before_its_first_edit(notes: Notes) -> None:
    (notes.root / "plan.md").write_bytes(NOTE.encode())
    await notes.until_found("zebra", ["plan.md"])
    assert await versions(notes, "plan.md") == 404
    notes.world.clock.advance(seconds=60)
    (notes.root / "plan.md").write_text("second giraffe")
    found = await until_listed(notes, "plan.md", ["giraffe", "zebra"])
    assert [(v["origin"], v["current"]) for v in found] == [("vault", True), ("vault", False)]
    assert found[1]["size"] == len(NOTE.encode())
    await notes.until_found("giraffe", ["plan.md"])

    old = await one(notes, "plan.md", found[1]["version"])
    assert old["frontmatter"] == {"tags": ["plan"], "owner": "Zoë"}
    await notes.write("plan.md", old["content"], frontmatter=old["frontmatter"])
    assert await notes.content("plan.md") == old["content"]


@requirement("memory.versions-of-disk-edits")
async def test_a_note_that_was_deleted_on_disk_can_be_restored(notes: Notes) -> None:
    (notes.root / "Folder").mkdir()
    for name in ("a", "b"):
        (notes.root / f"Folder/{name}.md").write_text(f"---\nkind: {name}\n---\nprecious {name}")
    await notes.until_found("precious", ["Folder/a.md", "Folder/b.md"])
    shutil.rmtree(notes.root / "Folder")
    await notes.until_found("precious", [])
    for name in ("a", "b"):
        found = await until_listed(notes, f"Folder/{name}.md", [f"precious {name}"])
        assert [v["current"] for v in found] == [False]
        old = await one(notes, f"Folder/{name}.md", found[0]["version"])
        await notes.write(old["path"], old["content"], frontmatter=old["frontmatter"])
        assert (notes.root / f"Folder/{name}.md").read_text() == f"---\nkind: {name}\n---\nprecious {name}"


async def edit(notes: Notes, text: str) -> None:
    """Edit a note on disk and wait until the edit is indexed."""
    (notes.root / "a.md").write_text(text)
    await notes.until_found(text.split()[-1], ["a.md"])


@requirement("memory.versions-of-disk-edits")
async def test_an_editor_that_saves_while_one_types_adds_a_version_each_five_minutes(notes: Notes) -> None:
    await edit(notes, "start")
    notes.world.clock.advance(seconds=600)
    for n in range(7):
        await edit(notes, f"typed w{n}")
        notes.world.clock.advance(seconds=100)
    await until_listed(notes, "a.md", ["w6", "w3", "w0", "start"])


async def test_a_state_that_somebody_read_stays_because_it_may_be_the_base_of_a_merge(notes: Notes) -> None:
    await edit(notes, "start")
    await edit(notes, "typed w0")
    await edit(notes, "typed w1")
    assert await notes.content("a.md") == "typed w1"
    await edit(notes, "typed w2")
    await edit(notes, "typed w3")
    await until_listed(notes, "a.md", ["w3", "w1", "start"])


async def test_what_the_service_writes_is_no_edit_on_disk(notes: Notes) -> None:
    for n in range(3):
        await notes.write("a.md", f"written w{n}")
        await notes.until_found(f"w{n}", ["a.md"])
        notes.world.clock.advance(seconds=1)
    # The vault is compared once more, with the event of a file that was edited.
    await edit(notes, "edited w3")
    found = await until_listed(notes, "a.md", ["w3", "w2", "w1", "w0"])
    assert [v["origin"] for v in found] == ["vault", "bus", "bus", "bus"]


async def test_going_back_by_hand_shows_the_old_state_as_the_newest(notes: Notes) -> None:
    await edit(notes, "start")
    for text in ("other", "start"):
        notes.world.clock.advance(seconds=600)
        await edit(notes, text)
    found = await until_listed(notes, "a.md", ["start", "other"])
    assert [v["current"] for v in found] == [True, False]


async def test_large_files_and_files_that_become_binary_are_indexed_but_not_kept(notes: Notes) -> None:
    await edit(notes, "x " * 600_000 + "big")
    await edit(notes, "x " * 600_000 + "bigger")
    assert await versions(notes, "a.md") == 404
    await edit(notes, "small")
    await until_listed(notes, "a.md", ["small"])


async def test_a_version_keeps_its_cause_and_one_that_is_restored_says_so_with_its_first_time(notes: Notes) -> None:
    await edit(notes, "start")
    for text in ("other", "third"):
        notes.world.clock.advance(seconds=600)
        await edit(notes, text)
    before = await until_listed(notes, "a.md", ["third", "other", "start"])
    assert [(v["cause"], v["first_at"]) for v in before] == [("edited", None), ("edited", None), ("found", None)]
    notes.world.clock.advance(seconds=600)
    await notes.write("a.md", "start")
    after = await until_listed(notes, "a.md", ["start", "third", "other"])
    assert [v["cause"] for v in after] == ["restored", "edited", "edited"]
    assert (after[0]["current"], after[0]["first_at"]) == (True, before[2]["created_at"])
    notes.world.clock.advance(seconds=600)
    await edit(notes, "fourth")
    last = await until_listed(notes, "a.md", ["fourth", "start", "third", "other"])
    assert [v["cause"] for v in last] == ["edited", "restored", "edited", "edited"]
    assert last[1] == {**after[0], "current": False}
