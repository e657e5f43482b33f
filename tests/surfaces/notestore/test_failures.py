"""Failures of the note store: invalid requests, and a plugin that fails."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.surfaces.notestore.note_store import KEY, TOOLS, NoteStore, run_note_store
from tests.vaultplugin.server import KEY as PLUGIN_KEY
from tests.vaultplugin.server import plugin

NOTE_TOOLS = [tool for tool in TOOLS if "path" in TOOLS[tool]]
TOOLS_NEEDING_A_NOTE = [tool for tool in NOTE_TOOLS if tool != "appendContext"]


def expect_failure(response: httpx.Response, status: int) -> str:
    """Return the message of a failed call; it contains no key and no details from the plugin."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"success", "error"}
    assert body["success"] is False
    assert isinstance(body["error"], str)
    assert body["error"]
    for secret in (KEY, PLUGIN_KEY, "DETAILS-OF-THE-PLUGIN"):
        assert secret not in response.text + str(response.headers)
    return str(body["error"])


@requirement("notestore.failure-status")
@pytest.mark.parametrize("tool", TOOLS_NEEDING_A_NOTE)
def test_missing_note_returns_404_with_its_path(store: NoteStore, tool: str) -> None:
    assert "a.md" in expect_failure(store.call(tool, **TOOLS[tool]), 404)


@requirement("notestore.failure-status")
@pytest.mark.parametrize(("tool", "field"), [(tool, field) for tool, body in TOOLS.items() for field in body])
def test_missing_field_returns_400_with_its_name(store: NoteStore, tool: str, field: str) -> None:
    body = {name: value for name, value in TOOLS[tool].items() if name != field}
    assert field in expect_failure(store.call(tool, **body), 400)
    assert store.stub.requests == []


INVALID_FIELDS: list[tuple[str, dict[str, Any]]] = [
    ("getContext", {"path": 1}),
    ("getContext", {"path": None}),
    ("getContext", {"path": ["a.md"]}),
    ("updateNote", {"content": None}),
    ("updateNote", {"content": {"a": 1}}),
    ("appendContext", {"content": 1}),
    ("searchNotes", {"query": ""}),
    ("searchNotes", {"query": 1}),
    ("manageFrontmatter", {"key": ""}),
    ("manageFrontmatter", {"key": "a\nb: c"}),
    ("manageFrontmatter", {"key": "k" * 256}),
    ("manageFrontmatter", {"key": 1}),
    ("manageTags", {"tags": "t"}),
    ("manageTags", {"tags": [1]}),
    ("manageTags", {"tags": ["#"]}),
    ("manageTags", {"tags": ["a\nb"]}),
    ("manageTags", {"action": "ADD"}),
    ("manageTags", {"action": None}),
    ("searchReplace", {"search": ""}),
    ("searchReplace", {"replace": 1}),
]


@pytest.mark.parametrize(("tool", "invalid_fields"), INVALID_FIELDS, ids=range(len(INVALID_FIELDS)))
def test_invalid_field_value_returns_400(store: NoteStore, tool: str, invalid_fields: dict[str, Any]) -> None:
    expect_failure(store.call(tool, **{**TOOLS[tool], **invalid_fields}), 400)
    assert store.stub.requests == []


INVALID_BODIES = [
    b"{",
    b"[]",
    b'"a"',
    b"1",
    b"null",
    b"\xff",
    b'{"path": "\\ud800"}',
    b"[" * 5000,
    b'{"path":"a.md"} x',
    b" ",
]


@pytest.mark.parametrize("body", INVALID_BODIES, ids=range(len(INVALID_BODIES)))
@pytest.mark.parametrize("tool", ["getContext", "listNotes"])
def test_body_that_is_not_a_json_object_returns_400(store: NoteStore, tool: str, body: bytes) -> None:
    with store.client as client:
        expect_failure(client.post(f"/api/{tool}", content=body, headers={"Content-Type": "application/json"}), 400)
    assert store.stub.requests == []


@requirement("notestore.post-and-envelope")
def test_body_with_another_content_type_returns_400(store: NoteStore) -> None:
    with store.client as client:
        response = client.post("/api/getContext", content=b'{"path":"a.md"}', headers={"Content-Type": "text/plain"})
    expect_failure(response, 400)


INVALID_PATHS = [
    *["", "/", "/etc/passwd", "../a.md", "a/../../b.md", "a//b.md", "./a.md", "a/", "a\\b.md"],
    *[".obsidian/app.json", "a/.trash/b.md", "nul\0.md", "a\nb.md"],
    *["x" * 256 + ".md", "a/" * 600 + "b.md"],
]


@pytest.mark.parametrize("path", INVALID_PATHS, ids=range(len(INVALID_PATHS)))
def test_invalid_path_returns_400_without_a_plugin_request(store: NoteStore, path: str) -> None:
    for tool in NOTE_TOOLS:
        expect_failure(store.call(tool, **{**TOOLS[tool], "path": path}), 400)
    assert store.stub.requests == []


@pytest.mark.parametrize("path", ["a?.md", "a:b.md", "a b/100%/ä#?.md", "CON.md", "a./b.md"])
def test_a_new_note_with_a_name_that_windows_cannot_have_returns_400(store: NoteStore, path: str) -> None:
    expect_failure(store.call("appendContext", path=path, content="x"), 400)
    expect_failure(store.call("getContext", path=path), 404)
    store.write(path, "x")
    store.call("appendContext", path=path, content="y")
    assert store.call("getContext", path=path).json()["data"]["content"].split() == ["x", "y"]


def test_file_that_is_not_utf8_returns_400(store: NoteStore) -> None:
    store.write("a.md", b"\xff\xfe\x00")
    assert "UTF-8" in expect_failure(store.call("getContext", path="a.md"), 400)
    expect_failure(store.call("manageTags", **TOOLS["manageTags"]), 400)
    assert (store.stub.root / "a.md").read_bytes() == b"\xff\xfe\x00"


@pytest.mark.parametrize("tool", ["manageTags", "manageFrontmatter"])
def test_invalid_frontmatter_is_not_edited(store: NoteStore, tool: str) -> None:
    store.write("a.md", "---\na: [\n---\nbody")
    expect_failure(store.call(tool, **TOOLS[tool]), 400)
    assert store.text("a.md") == "---\na: [\n---\nbody"


def test_tags_that_are_a_mapping_return_400(store: NoteStore) -> None:
    store.write("a.md", "---\ntags: {a: b}\n---\nbody")
    expect_failure(store.call("manageTags", **TOOLS["manageTags"]), 400)


def test_path_that_differs_only_in_case_returns_409(store: NoteStore) -> None:
    store.write("Notes/a.md", "x")
    store.write("notes.md", "x")
    for path in ("notes/b.md", "Notes/A.md", "Notes.MD"):
        expect_failure(store.call("appendContext", path=path, content="x"), 409)
    assert sorted(path.name for path in store.stub.root.iterdir()) == ["Notes", "notes.md"]


@requirement("notestore.post-and-envelope")
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_method_other_than_post_returns_405(store: NoteStore, method: str) -> None:
    with store.client as client:
        response = client.request(method, "/api/getContext")
    assert response.headers["allow"] == "POST"
    if method != "HEAD":
        expect_failure(response, 405)
    assert response.status_code == 405


@pytest.mark.parametrize("path", ["/", "/api", "/api/", "/api/none", "/api/getcontext", "/api/getContext/", "/x%0Ay"])
def test_unknown_path_returns_404(store: NoteStore, path: str) -> None:
    with store.client as client:
        expect_failure(client.post(path, json={}), 404)
        expect_failure(client.get(path), 404)


def test_body_above_the_size_limit_returns_413(store: NoteStore) -> None:
    expect_failure(store.call("updateNote", path="a.md", content="x" * 20_000_001), 413)
    assert store.stub.requests == []
    assert store.data("appendContext", path="a.md", content="x" * 19_000_000) == {"path": "a.md"}


def test_client_disconnect_during_upload_writes_nothing(store: NoteStore) -> None:
    port = httpx.URL(store.address).port
    assert port is not None
    head = f"POST /api/updateNote HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 50\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + b'{"path":"a.md"')
    assert store.data("listNotes") == {"notes": []}
    assert "Traceback" not in store.log.read_text()


PLUGIN_FAULTS = {
    "401": 502,
    "403": 502,
    "429": 502,
    "500": 502,
    "503": 502,
    "truncated": 502,
    "noise": 502,
    "redirect": 502,
    "garbage": 502,
}


@requirement("notestore.failure-status")
@pytest.mark.parametrize(("behaviour", "status"), PLUGIN_FAULTS.items())
@pytest.mark.parametrize("tool", TOOLS)
def test_plugin_failure_returns_502_for_every_tool(store: NoteStore, tool: str, behaviour: str, status: int) -> None:
    store.write("a.md", "x")
    store.stub.behaviour = behaviour
    expect_failure(store.call(tool, **TOOLS[tool]), status)
    assert store.text("a.md") == "x" or behaviour == "truncated"


@requirement("notestore.failure-status")
def test_rejected_plugin_key_returns_502_and_names_its_variable(tmp_path: Path) -> None:
    with (
        plugin(tmp_path / "vault") as stub,
        run_note_store(stub, tmp_path / "log", NOTES_API_KEY="wrong-5dd1") as store,
    ):
        assert "NOTES_API_KEY" in expect_failure(store.call("getContext", path="a.md"), 502)
        assert "NOTES_API_KEY" in store.log.read_text()
        assert "wrong-5dd1" not in store.log.read_text()


@pytest.fixture(scope="module")
def store_with_short_timeout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NoteStore]:
    """A note store with a timeout of 0.5 seconds, in front of a plugin that hangs."""
    folder = tmp_path_factory.mktemp("hasty")
    with plugin(folder / "vault") as stub:
        stub.behaviour = "slow"
        with run_note_store(stub, folder / "log", NOTES_TIMEOUT="0.5") as store:
            yield store


@requirement("notestore.failure-status")
def test_hanging_plugin_returns_504(store_with_short_timeout: NoteStore) -> None:
    assert "in time" in expect_failure(store_with_short_timeout.call("getContext", path="a.md"), 504)


def test_calls_to_a_hanging_plugin_time_out_in_parallel(store_with_short_timeout: NoteStore) -> None:
    """In sequence, the calls would take 120 seconds."""
    started = time.monotonic()
    with ThreadPoolExecutor(40) as pool:
        responses = list(pool.map(lambda _: store_with_short_timeout.call("deleteNote", path="a.md"), range(240)))
    assert {response.status_code for response in responses} == {504}
    assert time.monotonic() - started < 60


@requirement("notestore.failure-status")
def test_unreachable_plugin_returns_502_until_it_is_back(tmp_path: Path) -> None:
    with plugin(tmp_path / "vault") as stub:
        port = httpx.URL(stub.address).port
        assert port is not None
    with run_note_store(stub, tmp_path / "log") as store:
        for tool in TOOLS:
            assert "unreachable" in expect_failure(store.call(tool, **TOOLS[tool]), 502)
        store.write("a.md", "back")
        with plugin(tmp_path / "vault", port=port):
            assert store.data("getContext", path="a.md")["content"] == "back"
        assert "Traceback" not in store.log.read_text()


def test_unknown_plugin_host_returns_502(tmp_path: Path) -> None:
    with plugin(tmp_path / "vault") as stub:
        stub.address = "http://nobody.invalid:27123"
        with run_note_store(stub, tmp_path / "log") as store:
            expect_failure(store.call("getContext", path="a.md"), 502)
