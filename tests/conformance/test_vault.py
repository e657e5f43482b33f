"""What every vault must do, whatever holds its notes. Runs against each implementation of the port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stentor.domains.notes.plugin_client import PluginClient
from stentor.domains.notes.plugin_vault import PluginVault
from stentor_vault.notes import model
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.notes.model import ANY_STATE, NO_FILE, NoSuchNote, NoteChanged, Vault, content_hash
from stentor_vault.notes.paths import InvalidPath
from tests.vaultplugin.server import plugin as vault_plugin


@pytest.fixture(params=["folder", "plugin that compares", "plugin of version 3"])
async def vault(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Vault]:
    root = tmp_path / "vault"
    root.mkdir()
    if request.param == "folder":
        yield FolderVault(root)
        return
    with vault_plugin(root, 3 if request.param.endswith("3") else 5) as stub:
        served = PluginVault(PluginClient(stub.address, stub.key))
        yield served
        await served.close()


CONTENTS = [
    b"",
    b"# Hi\n",
    "ä 日本語 😀\r\n".encode(),
    b"\xef\xbb\xbf---\r\na: 1\r\n---\r\nbody",
    b"no line end",
    b"\xff\xfe\x00",
]


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
async def test_bytes_come_back_as_they_were_written(vault: Vault, content: bytes) -> None:
    change = await vault.write("a/b c/ä.md", content)
    note = await vault.read("a/b c/ä.md")
    assert (note.content, note.hash, note.stat.size) == (content, content_hash(content), len(content))
    assert change.previous is None
    assert change.stat is not None
    assert change.stat.path == note.path == "a/b c/ä.md"


async def test_a_write_replaces_and_answers_what_was_there(vault: Vault) -> None:
    await vault.write("a.md", b"one")
    assert (await vault.write("a.md", b"two")).previous == b"one"
    assert (await vault.read("a.md")).content == b"two"


async def test_a_change_for_another_state_is_refused_and_does_nothing(vault: Vault) -> None:
    await vault.write("a.md", b"one")
    for expected in (NO_FILE, content_hash(b"other")):
        with pytest.raises(NoteChanged) as error:
            await vault.write("a.md", b"two", expected)
        assert error.value.current == content_hash(b"one")
        with pytest.raises(NoteChanged):
            await vault.delete("a.md", expected)
    assert (await vault.read("a.md")).content == b"one"
    with pytest.raises(NoteChanged) as error:
        await vault.write("new.md", b"x", content_hash(b"old"))
    assert error.value.current == NO_FILE
    assert await vault.list_folder() == ["a.md"]


async def test_a_change_for_the_present_state_is_made(vault: Vault) -> None:
    await vault.write("a.md", b"one", NO_FILE)
    await vault.write("a.md", b"two", content_hash(b"one"))
    await vault.write("a.md", b"three", ANY_STATE)
    assert (await vault.delete("a.md", content_hash(b"three"))).previous == b"three"
    with pytest.raises(NoSuchNote):
        await vault.read("a.md")


async def test_of_many_writers_for_one_state_one_wins(vault: Vault) -> None:
    await vault.write("a.md", b"start")

    async def attempt(i: int) -> bool:
        try:
            await vault.write("a.md", b"%d" % i, content_hash(b"start"))
        except NoteChanged:
            return False
        return True

    won = await asyncio.gather(*(attempt(i) for i in range(32)))
    assert sum(won) == 1
    assert (await vault.read("a.md")).content == b"%d" % won.index(True)


async def test_readers_never_see_half_a_file(vault: Vault) -> None:
    whole = {bytes([65 + i]) * 100_000 for i in range(4)}
    await vault.write("a.md", next(iter(whole)))
    seen: set[bytes] = set()

    async def read() -> None:
        for _ in range(40):
            seen.add((await vault.read("a.md")).content)

    async def write() -> None:
        for _ in range(5):
            for content in whole:
                await vault.write("a.md", content)

    await asyncio.gather(read(), write(), write())
    assert seen <= whole


async def test_names_are_one_level_in_order_and_folders_end_in_a_slash(vault: Vault) -> None:
    for path in ("b.md", "a/x.md", "a/deep/y.md", "c/z.md"):
        await vault.write(path, b"")
    assert await vault.list_folder() == ["a/", "b.md", "c/"]
    assert await vault.list_folder("a") == await vault.list_folder("a/") == ["deep/", "x.md"]
    for unknown in ("none", "b.md", "a/none"):
        with pytest.raises(NoSuchNote):
            await vault.list_folder(unknown)


async def test_a_walk_finds_every_file(vault: Vault) -> None:
    assert await vault.walk() == []
    for path in ("z.md", "a/x.md", "a/deep/y.md"):
        await vault.write(path, path.encode())
    found = await vault.walk()
    assert [(stat.path, stat.size) for stat in found] == [("a/deep/y.md", 11), ("a/x.md", 6), ("z.md", 4)]
    assert all(stat.modified_at > 0 for stat in found)


async def test_what_is_deleted_is_gone(vault: Vault) -> None:
    await vault.write("a/x.md", b"1")
    assert (await vault.delete("a/x.md")).stat is None
    assert await vault.walk() == []
    with pytest.raises(NoSuchNote):
        await vault.delete("a/x.md")


@pytest.mark.parametrize("path", ["../x.md", "/etc/passwd", "a/../../x.md", ".obsidian/app.json", "a\0.md", ""])
async def test_no_path_leads_out_of_it(vault: Vault, path: str) -> None:
    for call in (vault.read(path), vault.write(path, b""), vault.delete(path)):
        with pytest.raises(InvalidPath):
            await call
    if path:
        with pytest.raises(InvalidPath):
            await vault.list_folder(path)


UNPORTABLE = ["Q: folder?/What is DNS?.md", 'a "b" <c>|*.md', "con.md", "dot./space /x.md", "a\u202edm.sh.md"]


@pytest.mark.parametrize("path", UNPORTABLE)
async def test_names_that_some_systems_cannot_have_are_found_and_changed(
    vault: Vault, tmp_path: Path, path: str
) -> None:
    file = tmp_path / "vault" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"1")
    assert [stat.path for stat in await vault.walk()] == [path]
    assert (await vault.write(path, b"2", content_hash(b"1"))).previous == b"1"
    assert (await vault.read(path)).content == b"2"
    await vault.delete(path, content_hash(b"2"))
    assert not file.exists()


@pytest.mark.parametrize("path", UNPORTABLE)
async def test_a_new_note_needs_a_name_that_all_systems_can_have_or_that_the_vault_has(
    vault: Vault, tmp_path: Path, path: str
) -> None:
    with pytest.raises(InvalidPath, match=r"Windows|every system|direction of the text"):
        await model.require_portable_names(vault, path)
    file = tmp_path / "vault" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"1")
    await model.require_portable_names(vault, path)
    if "/" in path:
        await model.require_portable_names(vault, path.rpartition("/")[0] + "/new.md")
        with pytest.raises(InvalidPath):
            await model.require_portable_names(vault, path.rpartition("/")[0] + "/new?.md")


async def test_a_folder_is_no_note(vault: Vault) -> None:
    await vault.write("a/x.md", b"1")
    for call in (vault.read("a"), vault.write("a", b""), vault.write("a/x.md/y.md", b""), vault.delete("a")):
        with pytest.raises((NoSuchNote, model.NameTaken)):
            await call
    assert (await vault.read("a/x.md")).content == b"1"


async def test_a_name_in_other_letters_is_refused(vault: Vault) -> None:
    await vault.write("Notes/Straße.md", b"1")
    for path in ("Notes/straße.md", "Notes/STRASSE.md", "notes/other.md"):
        with pytest.raises(model.NameTaken):
            await vault.write(path, b"2")


async def test_a_note_has_a_largest_size(vault: Vault) -> None:
    with pytest.raises(model.NoteTooLarge):
        await vault.write("big.md", b"x" * (model.MAX_NOTE_BYTES + 1))
    assert await vault.walk() == []


async def test_it_can_be_checked(vault: Vault) -> None:
    await vault.check()
