"""The client of the vault plugin: what it sends, and what it makes of every answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from stentor.core.errors import StartRefused, StentorError, Timeout
from stentor.domains.notes import frontmatter, plugintree
from stentor.domains.notes import plugin as client
from stentor.domains.notes.model import NoSuchNote, VaultUnavailable, content_hash
from stentor.domains.notes.plugin import Plugin
from stentor.domains.notes.pluginvault import PluginVault
from stentor.domains.notes.upstream import KeyRefused, UpstreamBroken, UpstreamDown, VaultTimeout
from tests.requirements import requirement
from tests.vaultplugin.certificate import self_signed
from tests.vaultplugin.reply import Reply, json_reply
from tests.vaultplugin.server import PluginStub, plugin

Served = tuple[PluginVault, PluginStub]


@asynccontextmanager
async def serving(root: Path, version: int = 5, seconds: float = 10, **more: Any) -> AsyncIterator[Served]:
    with plugin(root, version, **more) as stub:
        vault = PluginVault(Plugin(stub.address, stub.key, seconds))
        try:
            yield vault, stub
        finally:
            await vault.close()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path / "vault") as both:
        yield both


NAMES = ["a b/100%/ä#.md", "%2F/%25.md", "a+b&c=d;e.md", "日本/😀.md", "~'()[]{}!@$^,`.md", "x/y.md.md"]


@requirement("notestore.plugin-calls")
@pytest.mark.parametrize("path", NAMES)
async def test_each_segment_is_encoded_for_itself(served: Served, path: str) -> None:
    vault, stub = served
    await vault.replace(path, b"content")
    assert (stub.root / path).read_bytes() == b"content"
    assert await vault.content(path) == b"content"
    assert await vault.paths() == [path]
    await vault.delete(path)
    assert await vault.paths() == []
    for asked in stub.asked:
        assert set(asked.path) <= set("/%.-_~") | set(map(chr, range(48, 58))) | set(map(chr, range(65, 123)))


@requirement("notestore.plugin-calls")
async def test_the_calls_are_the_plugins(served: Served) -> None:
    vault, stub = served
    await vault.replace("a b/c#.md", b"x")
    await vault.append("a b/c#.md", "y")
    await vault.set_key("a b/c#.md", "schlüssel: #1", {"a": 1})
    await vault.search("ä & b#")
    put, post, patch = (next(a for a in stub.asked if a.method == method) for method in ("PUT", "POST", "PATCH"))
    assert put.path == post.path == patch.path == "/vault/a%20b/c%23.md"
    assert put.headers["content-type"] == post.headers["content-type"] == "text/markdown"
    assert patch.headers["content-type"] == "application/json"
    named = ("operation", "target-type", "target", "create-target-if-missing", "markdown-patch-version")
    assert [patch.headers[name] for name in named] == [
        *("replace", "frontmatter", "schl%C3%BCssel%3A%20%231", "true", "2")
    ]
    assert stub.asked[-1].path == "/search/simple/?query=%C3%A4%20%26%20b%23&contextLength=100"


async def test_bytes_that_a_text_would_lose_are_sent_as_bytes(served: Served) -> None:
    vault, stub = served
    for content in (b"\xff", "\ufeffa".encode()):
        await vault.replace("a.md", content)
        assert stub.asked[-1].headers["content-type"] == "application/octet-stream"


async def test_an_empty_note_can_be_written(served: Served) -> None:
    vault, stub = served
    await vault.replace("a.md", b"")
    assert stub.asked[-1].headers["content-length"] == "0"
    assert await vault.content("a.md") == b""


async def test_many_calls_share_a_connection(served: Served) -> None:
    vault, stub = served
    for i in range(20):
        await vault.replace("a.md", str(i).encode())
    assert stub.connections == 1


VALUES: list[Any] = ["text", "", None, 0, False, [], ["a"], {"a": {"b": None}}, {"targetType": "x"}]


@requirement("notestore.plugin-calls")
@pytest.mark.parametrize("version", [3, 4, 5, 6])
async def test_every_version_sets_every_value(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path / "vault", version) as (vault, stub):
        await vault.replace("a.md", b"body")
        for value in VALUES * 2:
            await vault.set_key("a.md", "key", value)
            assert _value(stub) == value
            assert (stub.root / "a.md").read_text().endswith("---\nbody")


def _value(stub: PluginStub) -> Any:
    return frontmatter.read((stub.root / "a.md").read_text())["key"]


FORMS = [(3, "x", 1, 1), (4, "x", 3, 1), (5, "x", 1, 1), (6, "x", 1, 1), (3, "", 2, 1), (5, "", 1, 1), (6, None, 2, 1)]


@pytest.mark.parametrize(("version", "value", "first", "later"), FORMS)
async def test_the_form_that_worked_is_asked_first(
    tmp_path: Path, version: int, value: Any, first: int, later: int
) -> None:
    async with serving(tmp_path / "vault", version) as (vault, stub):
        await vault.replace("a.md", b"body")
        for expected in (first, later, later):
            stub.asked.clear()
            await vault.set_key("a.md", "key", value)
            assert len(stub.asked) == expected


async def test_a_plugin_that_is_updated_meanwhile_is_understood(tmp_path: Path) -> None:
    async with serving(tmp_path / "vault", 4) as (vault, stub):
        await vault.replace("a.md", b"body")
        for version in (4, 6, 3, 5):
            stub.version = version
            for value in ("x", ""):
                await vault.set_key("a.md", "key", value)
                assert _value(stub) == value


async def test_a_strong_tag_is_sent_back_and_a_weak_one_is_not(tmp_path: Path) -> None:
    for version, sent in ((3, False), (5, True)):
        async with serving(tmp_path / str(version), version) as (vault, stub):
            await vault.replace("a.md", b"one")
            await vault.replace("a.md", b"two", content_hash(b"one"))
            await vault.set_key("a.md", "k", 1, content_hash(b"two"))
            await vault.delete("a.md")
            changes = [a for a in stub.asked if a.method != "GET"]
            assert [("if-match" in a.headers) for a in changes] == [False, sent, sent, sent]


@requirement("notestore.plugin-certificate-and-key")
async def test_a_certificate_that_signs_itself_is_taken(tmp_path: Path) -> None:
    tls = self_signed(tmp_path, "somebody.else")
    async with serving(tmp_path / "vault", tls=tls) as (vault, stub):
        assert stub.address.startswith("https://")
        await vault.replace("a.md", b"x")
        assert await vault.content("a.md") == b"x"


@requirement("notestore.plugin-certificate-and-key")
async def test_a_certificate_is_taken_for_the_configured_address_alone(tmp_path: Path) -> None:
    """Another address is never asked, and if it were, its certificate would be judged."""
    tls = self_signed(tmp_path)
    with plugin(tmp_path / "other", tls=tls) as other:
        async with serving(tmp_path / "vault", tls=tls) as (vault, stub):
            stub.always = Reply(307, b"", {"Location": f"{other.address}/vault/a.md"})
            with pytest.raises(UpstreamBroken):
                await vault.content("a.md")
        assert other.asked == []
    asking = Plugin("https://127.0.0.1:27124", "k")
    judged = {address: asking._verification(URL(address)) for address in ADDRESSES}
    assert judged == ADDRESSES
    assert Plugin("http://127.0.0.1:27123", "k")._verification(URL("http://127.0.0.1:27123/")) is True


ADDRESSES = {
    "https://127.0.0.1:27124/vault/": False,
    "https://127.0.0.1:27125/vault/": True,
    "https://localhost:27124/vault/": True,
    "https://elsewhere.example/": True,
    "http://127.0.0.1:27124/": True,
}


@pytest.mark.parametrize("tls", [False, True])
async def test_the_wrong_scheme_is_a_plugin_that_cannot_be_reached(tmp_path: Path, tls: bool) -> None:
    with plugin(tmp_path / "vault", tls=self_signed(tmp_path) if tls else None) as stub:
        address = stub.address.replace("https", "http") if tls else stub.address.replace("http", "https")
        vault = PluginVault(Plugin(address, stub.key))
        with pytest.raises((UpstreamDown, UpstreamBroken)):
            await vault.content("a.md")
        await vault.close()


CALLS: dict[str, Callable[[PluginVault], Awaitable[object]]] = {
    "read": lambda vault: vault.read("a.md"),
    "content": lambda vault: vault.content("a.md"),
    "write": lambda vault: vault.write("a.md", b"x"),
    "delete": lambda vault: vault.delete("a.md"),
    "names": lambda vault: vault.names(),
    "walk": lambda vault: vault.walk(),
    "check": lambda vault: vault.check(),
    "search": lambda vault: vault.search("x"),
    "append": lambda vault: vault.append("a.md", "x"),
    "set_key": lambda vault: vault.set_key("a.md", "k", 1),
}
MOODS: dict[str, type[StentorError]] = {
    "401": KeyRefused,
    "403": KeyRefused,
    "429": UpstreamDown,
    "500": UpstreamBroken,
    "503": UpstreamBroken,
    "redirect": UpstreamBroken,
    "truncated": UpstreamBroken,
    "noise": UpstreamBroken,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("mood", MOODS)
async def test_every_failure_is_an_error_of_the_house(served: Served, mood: str, call: str) -> None:
    vault, stub = served
    (stub.root / "a.md").write_bytes(b"x")
    stub.mood = mood
    with pytest.raises(MOODS[mood]) as error:
        await CALLS[call](vault)
    assert isinstance(error.value, VaultUnavailable)
    assert stub.key not in repr(error.value)
    assert "DETAILS-OF-THE-PLUGIN" not in repr(error.value)


@pytest.mark.parametrize("call", CALLS)
async def test_a_plugin_that_hangs_is_a_timeout(tmp_path: Path, call: str) -> None:
    async with serving(tmp_path / "vault", seconds=0.2) as (vault, stub):
        stub.mood = "slow"
        with pytest.raises(VaultTimeout) as error:
            await CALLS[call](vault)
        assert isinstance(error.value, Timeout)
        assert isinstance(error.value, VaultUnavailable)
        assert error.value.status == 504


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "https://127.0.0.1:1", "http://nobody.invalid:27123"])
async def test_an_address_where_nobody_answers(address: str) -> None:
    vault = PluginVault(Plugin(address, "key"))
    for call in CALLS.values():
        with pytest.raises(UpstreamDown):
            await call(vault)
    await vault.close()


NO_LISTS = [b"", b"[]", b"{}", b'{"files": 1}', b'{"files": [1]}', b"\xff", b"[" * 5000, b"<html>", b'{"files":["a"]']


@pytest.mark.parametrize("body", NO_LISTS, ids=range(len(NO_LISTS)))
async def test_a_listing_that_is_none_is_refused(served: Served, body: bytes) -> None:
    vault, stub = served
    stub.always = Reply(200, body, {"Content-Type": "application/json"})
    for call in ("names", "walk", "check", "search"):
        if (body, call) == (b"[]", "search"):
            assert await vault.search("x") == []
            continue
        with pytest.raises(UpstreamBroken):
            await CALLS[call](vault)


ROWS: list[Any] = [
    1,
    {},
    {"filename": "a.md", "score": 1},
    {"filename": 1, "score": 1, "matches": []},
    {"filename": "a.md", "score": "x", "matches": []},
    {"filename": "a.md", "score": 1, "matches": [{}]},
    {"filename": "a.md", "score": 1, "matches": [{"match": {"start": 0, "end": 1}, "context": 1}]},
    {"filename": "a.md", "score": 1, "matches": [{"match": 1, "context": "x"}]},
]


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
async def test_a_search_with_a_row_that_is_none_is_refused(served: Served, row: Any) -> None:
    vault, stub = served
    stub.always = json_reply([row])
    with pytest.raises(UpstreamBroken):
        await vault.search("x")


@pytest.mark.parametrize("note", [{}, {"stat": None}, {"stat": {"mtime": "x", "ctime": 1, "size": 1}}, []])
async def test_a_note_without_its_times_is_refused(served: Served, note: Any) -> None:
    vault, stub = served
    stub.always = json_reply(note)
    with pytest.raises(UpstreamBroken):
        await vault.read("a.md")


async def test_no_name_of_a_listing_leads_astray(served: Served) -> None:
    """Nor does a listing that goes in circles end in more than a path's length of folders."""
    vault, stub = served
    stub.always = json_reply({"files": ["../up.md", "../", "a/b.md", "", "/", ".hidden.md", ".git/", "a.md", "a.md"]})
    assert await vault.paths() == ["a.md"]
    stub.always = json_reply({"files": ["a" * 200 + "/", "b.md"]})
    assert [len(path) for path in await vault.paths()] == [1009, 808, 607, 406, 205, 4]


async def test_a_walk_asks_for_a_bounded_number_of_folders_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault, stub = served
    for i in range(40):
        (stub.root / f"f{i:02}").mkdir()
        (stub.root / f"f{i:02}" / "a.md").write_bytes(b"")
    most = now = 0
    asked = Plugin.ask

    async def counted(self: Plugin, *args: Any, **more: Any) -> client.Answer:
        nonlocal most, now
        now += 1
        most = max(most, now)
        try:
            return await asked(self, *args, **more)
        finally:
            now -= 1

    monkeypatch.setattr(Plugin, "ask", counted)
    assert len(await vault.paths()) == 40
    assert most == plugintree.AT_ONCE


async def test_an_answer_has_a_largest_size(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    vault, stub = served
    monkeypatch.setattr(client, "MAX_ANSWER", 1000)
    (stub.root / "a.md").write_bytes(b"x" * 1000)
    assert len(await vault.content("a.md")) == 1000
    (stub.root / "a.md").write_bytes(b"x" * 1001)
    with pytest.raises(UpstreamBroken):
        await vault.content("a.md")


async def test_a_caller_that_gives_up_leaves_no_lock(tmp_path: Path) -> None:
    async with serving(tmp_path / "vault") as (vault, stub):
        stub.mood = "slow"
        calls = [asyncio.create_task(vault.replace("a.md", b"x")) for _ in range(3)]
        while not stub.waiting:
            await asyncio.sleep(0.01)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert len(vault._locks) == 0
        stub.mood = "ok"
        await vault.replace("a.md", b"y")


async def test_a_note_of_which_nothing_is_known_is_missing(served: Served) -> None:
    vault, _ = served
    for call in ("read", "content", "delete", "set_key"):
        with pytest.raises(NoSuchNote):
            await CALLS[call](vault)


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1:1", "ftp://x", "http://", "http://a:b@c", "http://a/#b", "http://a?b"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(StartRefused, match="NOTES_BASE_URL"):
        Plugin(address, "k")


async def test_the_plugin_may_stand_below_a_path(served: Served) -> None:
    stub = served[1]
    below = PluginVault(Plugin(f"{stub.address}/proxy/", stub.key))
    with pytest.raises(NoSuchNote):
        await below.names("a")
    assert stub.asked[-1].path == "/proxy/vault/a/"
    await below.close()
