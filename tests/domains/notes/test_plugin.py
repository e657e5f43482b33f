"""The client of the vault plugin: what it sends, to whom, and in which form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from stentor.core.errors import StartRefused
from stentor.domains.notes.plugin_client import PluginClient
from stentor.domains.notes.plugin_vault import PluginVault
from stentor_vault.notes import frontmatter
from stentor_vault.notes.model import NoSuchNote, VaultProtocolError, VaultUnreachable, content_hash
from tests.domains.notes.plugins import Served, serving
from tests.requirements import requirement
from tests.vaultplugin.certificate import self_signed
from tests.vaultplugin.reply import Reply
from tests.vaultplugin.server import PluginStub, plugin

NAMES = ["a b/100%/ä#.md", "%2F/%25.md", "a+b&c=d;e.md", "日本/😀.md", "~'()[]{}!@$^,`.md", "x/y.md.md"]


@requirement("notestore.plugin-calls")
@pytest.mark.parametrize("path", NAMES)
async def test_each_segment_is_encoded_for_itself(served: Served, path: str) -> None:
    vault, stub = served
    await vault.replace(path, b"content")
    assert (stub.root / path).read_bytes() == b"content"
    assert await vault.read_content(path) == b"content"
    assert await vault.list_files() == [path]
    await vault.delete(path)
    assert await vault.list_files() == []
    for asked in stub.requests:
        assert set(asked.path) <= set("/%.-_~") | set(map(chr, range(48, 58))) | set(map(chr, range(65, 123)))


@requirement("notestore.plugin-calls")
async def test_the_calls_are_the_plugins(served: Served) -> None:
    vault, stub = served
    await vault.replace("a b/c#.md", b"x")
    await vault.append("a b/c#.md", "y")
    await vault.set_key("a b/c#.md", "schlüssel: #1", {"a": 1})
    await vault.search("ä & b#")
    put, post, patch = (next(a for a in stub.requests if a.method == method) for method in ("PUT", "POST", "PATCH"))
    assert put.path == post.path == patch.path == "/vault/a%20b/c%23.md"
    assert put.headers["content-type"] == post.headers["content-type"] == "text/markdown"
    assert patch.headers["content-type"] == "application/json"
    named = ("operation", "target-type", "target", "create-target-if-missing", "markdown-patch-version")
    assert [patch.headers[name] for name in named] == [
        *("replace", "frontmatter", "schl%C3%BCssel%3A%20%231", "true", "2")
    ]
    assert stub.requests[-1].path == "/search/simple/?query=%C3%A4%20%26%20b%23&contextLength=100&matchLimit=1"


async def test_bytes_that_a_text_would_lose_are_sent_as_bytes(served: Served) -> None:
    vault, stub = served
    for content in (b"\xff", "\ufeffa".encode()):
        await vault.replace("a.md", content)
        assert stub.requests[-1].headers["content-type"] == "application/octet-stream"


async def test_an_empty_note_can_be_written(served: Served) -> None:
    vault, stub = served
    await vault.replace("a.md", b"")
    assert stub.requests[-1].headers["content-length"] == "0"
    assert await vault.read_content("a.md") == b""


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
            stub.requests.clear()
            await vault.set_key("a.md", "key", value)
            assert len(stub.requests) == expected


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
            changes = [a for a in stub.requests if a.method != "GET"]
            assert [("if-match" in a.headers) for a in changes] == [False, sent, sent, sent]


@requirement("notestore.plugin-certificate-and-key")
async def test_a_certificate_that_signs_itself_is_taken(tmp_path: Path) -> None:
    tls = self_signed(tmp_path, "somebody.else")
    async with serving(tmp_path / "vault", tls=tls) as (vault, stub):
        assert stub.address.startswith("https://")
        await vault.replace("a.md", b"x")
        assert await vault.read_content("a.md") == b"x"


@requirement("notestore.plugin-certificate-and-key")
async def test_a_certificate_is_taken_for_the_configured_address_alone(tmp_path: Path) -> None:
    """Another address is never asked, and if it were, its certificate would be judged."""
    tls = self_signed(tmp_path)
    with plugin(tmp_path / "other", tls=tls) as other:
        async with serving(tmp_path / "vault", tls=tls) as (vault, stub):
            stub.fixed_reply = Reply(307, b"", {"Location": f"{other.address}/vault/a.md"})
            with pytest.raises(VaultProtocolError):
                await vault.read_content("a.md")
        assert other.requests == []
    asking = PluginClient("https://127.0.0.1:27124", "k")
    judged = {address: asking._ssl_option(URL(address)) for address in ADDRESSES}
    assert judged == ADDRESSES
    assert PluginClient("http://127.0.0.1:27123", "k")._ssl_option(URL("http://127.0.0.1:27123/")) is True


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
        vault = PluginVault(PluginClient(address, stub.key))
        with pytest.raises((VaultUnreachable, VaultProtocolError)):
            await vault.read_content("a.md")
        await vault.close()


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1:1", "ftp://x", "http://", "http://a:b@c", "http://a/#b", "http://a?b"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(StartRefused, match=r"address must be|not an address"):
        PluginClient(address, "k")


async def test_the_plugin_may_stand_below_a_path(served: Served) -> None:
    stub = served[1]
    below = PluginVault(PluginClient(f"{stub.address}/proxy/", stub.key))
    with pytest.raises(NoSuchNote):
        await below.list_folder("a")
    assert stub.requests[-1].path == "/proxy/vault/a/"
    await below.close()
