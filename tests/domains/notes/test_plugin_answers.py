"""What the client of the vault plugin makes of every answer: failures, nonsense, too much, none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stentor.core.errors import StentorError, Timeout
from stentor.domains.notes import plugin_calls
from stentor.domains.notes import plugin_client as client
from stentor.domains.notes.plugin_client import PluginClient
from stentor.domains.notes.plugin_vault import PluginVault
from stentor_vault.notes import model
from stentor_vault.notes.model import (
    NoSuchNote,
    NoteTooLarge,
    VaultKeyRejected,
    VaultProtocolError,
    VaultTimeout,
    VaultUnavailable,
    VaultUnreachable,
)
from tests.domains.notes.plugins import CALLS, Served, serving
from tests.patience import soon
from tests.vaultplugin.reply import Reply, json_reply

MOODS: dict[str, type[StentorError]] = {
    "401": VaultKeyRejected,
    "403": VaultKeyRejected,
    "429": VaultUnreachable,
    "500": VaultProtocolError,
    "503": VaultProtocolError,
    "redirect": VaultProtocolError,
    "truncated": VaultProtocolError,
    "noise": VaultProtocolError,
    "garbage": VaultProtocolError,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mood", MOODS)
async def test_every_failure_is_an_error_of_the_house(served: Served, mood: str, call: str) -> None:
    vault, stub = served
    (stub.root / "a.md").write_bytes(b"x")
    stub.behaviour = mood
    with pytest.raises(MOODS[mood]) as error:
        await CALLS[call](vault)
    assert isinstance(error.value, VaultUnavailable)
    assert stub.key not in repr(error.value)
    assert "DETAILS-OF-THE-PLUGIN" not in repr(error.value)


@pytest.mark.parametrize("call", CALLS)
async def test_a_plugin_that_hangs_is_a_timeout(tmp_path: Path, call: str) -> None:
    async with serving(tmp_path / "vault", seconds=0.2) as (vault, stub):
        stub.behaviour = "slow"
        with pytest.raises(VaultTimeout) as error:
            await CALLS[call](vault)
        assert isinstance(error.value, Timeout)
        assert isinstance(error.value, VaultUnavailable)
        assert error.value.status == 504


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "https://127.0.0.1:1", "http://nobody.invalid:27123"])
async def test_an_address_where_nobody_answers(address: str) -> None:
    vault = PluginVault(PluginClient(address, "key"))
    for call in CALLS.values():
        with pytest.raises(VaultUnreachable):
            await call(vault)
    await vault.close()


NO_LISTS = [
    b"",
    b"[]",
    b"{}",
    b'{"files": 1}',
    b'{"files": [1]}',
    b"\xff",
    b"[" * 5000,
    b"<html>",
    b'{"files":["a"]',
    b'{"files":["/"]}',
]


@pytest.mark.parametrize("body", NO_LISTS, ids=range(len(NO_LISTS)))
async def test_a_listing_that_is_none_is_refused(served: Served, body: bytes) -> None:
    vault, stub = served
    stub.fixed_reply = Reply(200, body, {"Content-Type": "application/json"})
    for call in ("names", "walk", "check", "search"):
        if (body, call) == (b"[]", "search"):
            assert await vault.search("x") == []
            continue
        with pytest.raises(VaultProtocolError):
            await CALLS[call](vault)


ROWS: list[Any] = [
    1,
    {},
    {"filename": "a.md", "score": 1, "matches": 5},
    {"filename": 1, "score": 1, "matches": []},
    {"filename": "a.md", "score": "x", "matches": []},
    {"filename": "a.md", "score": 1, "matches": [{}]},
    {"filename": "a.md", "score": 1, "matches": [{"match": {"start": 0, "end": 1}, "context": 1}]},
    {"filename": "a.md", "score": 1, "matches": [{"match": 1, "context": "x"}]},
]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
async def test_a_search_with_a_row_that_is_none_is_refused(served: Served, row: Any) -> None:
    vault, stub = served
    stub.fixed_reply = json_reply([row])
    with pytest.raises(VaultProtocolError):
        await vault.search("x")


@pytest.mark.parametrize("note", [{}, {"stat": None}, {"stat": {"mtime": "x", "ctime": 1, "size": 1}}, []])
async def test_a_note_without_its_times_is_refused(served: Served, note: Any) -> None:
    vault, stub = served
    stub.fixed_reply = json_reply(note)
    with pytest.raises(VaultProtocolError):
        await vault.read("a.md")


@pytest.mark.parametrize("name", ["../up.md", "../../", "a/b.md", "", "/", "a\0.md", None])
async def test_a_name_that_leads_astray_is_refused(served: Served, name: Any) -> None:
    vault, stub = served
    stub.fixed_reply = json_reply({"files": ["a.md", name]})
    with pytest.raises(VaultProtocolError):
        await vault.list_files()
    assert len(stub.requests) <= 1


async def test_what_is_hidden_is_not_walked_and_a_circle_ends(served: Served) -> None:
    vault, stub = served
    stub.fixed_reply = json_reply({"files": ["../", ".hidden.md", ".git/", "a.md", "a.md"]})
    assert await vault.list_files() == ["a.md"]
    stub.fixed_reply = json_reply({"files": ["a" * 200 + "/", "b.md"]})
    assert [len(path) for path in await vault.list_files()] == [1009, 808, 607, 406, 205, 4]


async def test_a_walk_asks_for_a_bounded_number_of_folders_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault, stub = served
    for i in range(40):
        (stub.root / f"f{i:02}").mkdir()
        (stub.root / f"f{i:02}" / "a.md").write_bytes(b"")
    most = now = 0
    asked = PluginClient.request

    async def counted(self: PluginClient, *args: Any, **more: Any) -> client.PluginResponse:
        nonlocal most, now
        now += 1
        most = max(most, now)
        try:
            return await asked(self, *args, **more)
        finally:
            now -= 1

    monkeypatch.setattr(PluginClient, "request", counted)
    assert len(await vault.list_files()) == 40
    assert most == plugin_calls.MAX_CONCURRENT_REQUESTS


async def test_an_answer_has_a_largest_size(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    vault, stub = served
    monkeypatch.setattr(client, "MAX_RESPONSE_BYTES", 1000)
    (stub.root / "a.md").write_bytes(b"x" * 1000)
    assert len(await vault.read_content("a.md")) == 1000
    (stub.root / "a.md").write_bytes(b"x" * 1001)
    with pytest.raises(NoteTooLarge):
        await vault.read_content("a.md")


async def test_a_file_that_is_larger_than_a_note_may_be_is_read_as_no_note(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault, stub = served
    monkeypatch.setattr(client, "MAX_RESPONSE_BYTES", 2000)
    monkeypatch.setattr(model, "MAX_NOTE_BYTES", 1000)
    (stub.root / "note.md").write_bytes(b"x" * 1000)
    (stub.root / "large.md").write_bytes(b"x" * 1001)
    (stub.root / "huge.md").write_bytes(b"x" * 2001)
    assert len((await vault.read("note.md")).content) == 1000
    for path in ("large.md", "huge.md"):
        with pytest.raises(NoteTooLarge):
            await vault.read(path)
    assert [stat.path for stat in await vault.walk()] == ["large.md", "note.md"]


@pytest.mark.parametrize("call", ["read", "content", "write", "delete"])
async def test_a_file_that_the_plugin_does_not_send_is_too_large(served: Served, call: str) -> None:
    vault, stub = served
    stub.behaviour = "413"
    with pytest.raises(NoteTooLarge):
        await CALLS[call](vault)


async def test_a_file_that_the_plugin_does_not_send_is_left_out_of_a_walk(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault, stub = served
    for name in ("a.md", "film.mp4"):
        (stub.root / name).write_text("x")
    request = client.PluginClient.request

    async def refuse_film(self: client.PluginClient, method: str, path: str, **more: Any) -> client.PluginResponse:
        response = await request(self, method, path, **more)
        return msgspec.structs.replace(response, status=413) if path.endswith("film.mp4") else response

    monkeypatch.setattr(client.PluginClient, "request", refuse_film)
    assert [stat.path for stat in await vault.walk()] == ["a.md"]


async def test_a_caller_that_gives_up_leaves_no_lock(tmp_path: Path) -> None:
    async with serving(tmp_path / "vault") as (vault, stub):
        stub.behaviour = "slow"
        calls = [asyncio.create_task(vault.replace("a.md", b"x")) for _ in range(3)]
        await soon(lambda: stub.waiting_requests)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert len(vault._locks) == 0
        stub.behaviour = "ok"
        await vault.replace("a.md", b"y")


async def test_a_note_of_which_nothing_is_known_is_missing(served: Served) -> None:
    vault, _ = served
    for call in ("read", "content", "delete", "set_key"):
        with pytest.raises(NoSuchNote):
            await CALLS[call](vault)


async def test_a_part_whose_note_the_plugin_names_is_neither_note_nor_folder(served: Served) -> None:
    vault, stub = served
    for named, path in (("h/x.md", "h/x.md/heading/A"), ("/vault/h%20%C3%A4/x.md", "h ä/x.md/heading/A")):
        stub.fixed_reply = Reply(200, b"x", {"Content-Type": "text/markdown", "Content-Location": named})
        for call in (vault.read_content(path), vault.list_folder(path)):
            with pytest.raises(NoSuchNote):
                await call
        assert await vault.read_content(path.partition(".md")[0] + ".md") == b"x"


async def test_a_check_says_who_answers(served: Served) -> None:
    vault, stub = served
    await vault.check()
    stub.key = "another"
    with pytest.raises(VaultKeyRejected):
        await vault.check()
    for reply in (Reply(404), json_reply({"status": "OK"}), json_reply([]), Reply(200, b"<html>")):
        stub.fixed_reply = reply
        with pytest.raises(VaultProtocolError):
            await vault.check()


async def test_a_root_that_is_not_there_is_an_empty_vault_of_old_plugins_alone(tmp_path: Path) -> None:
    async with serving(tmp_path / "old", version=3) as (vault, _):
        assert await vault.list_files() == []
    async with serving(tmp_path / "new", version=5) as (vault, stub):
        assert await vault.list_files() == []
        stub.has_root = False
        with pytest.raises(VaultProtocolError, match="root"):
            await vault.list_files()
        stub.fixed_reply = Reply(404)
        with pytest.raises(VaultProtocolError, match="is not the vault plugin"):
            await vault.list_files()


async def test_a_file_that_the_plugin_does_not_describe_has_no_times(served: Served) -> None:
    vault, stub = served
    stub.fixed_reply = Reply(200, b"\xff\xfe", {"Content-Type": "image/png"})
    note = await vault.read("a.png")
    assert (note.content, note.stat.size, note.stat.modified_at) == (b"\xff\xfe", 2, 0)
