"""What goes wrong: the caller's mistakes, and the plugin's."""

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
from tests.surfaces.notestore.running import KEY, TOOLS, NoteStore, note_store
from tests.vaultplugin.server import KEY as PLUGIN_KEY
from tests.vaultplugin.server import plugin

ON_A_NOTE = [tool for tool in TOOLS if "path" in TOOLS[tool]]
FINDS = [tool for tool in ON_A_NOTE if tool != "appendContext"]


def failure(answer: httpx.Response, status: int) -> str:
    """The sentence of a failure body, which names neither a key nor what the plugin said."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body.keys() == {"success", "error"}
    assert body["success"] is False
    assert isinstance(body["error"], str)
    assert body["error"]
    for secret in (KEY, PLUGIN_KEY, "DETAILS-OF-THE-PLUGIN"):
        assert secret not in answer.text + str(answer.headers)
    return str(body["error"])


@requirement("notestore.failure-status")
@pytest.mark.parametrize("tool", FINDS)
def test_a_missing_note_is_404(store: NoteStore, tool: str) -> None:
    assert "a.md" in failure(store.call(tool, **TOOLS[tool]), 404)


@requirement("notestore.failure-status")
@pytest.mark.parametrize(("tool", "field"), [(tool, field) for tool, body in TOOLS.items() for field in body])
def test_a_missing_field_is_400_and_named(store: NoteStore, tool: str, field: str) -> None:
    body = {name: value for name, value in TOOLS[tool].items() if name != field}
    assert field in failure(store.call(tool, **body), 400)
    assert store.stub.asked == []


WRONG: list[tuple[str, dict[str, Any]]] = [
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


@pytest.mark.parametrize(("tool", "wrong"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_type_is_400(store: NoteStore, tool: str, wrong: dict[str, Any]) -> None:
    failure(store.call(tool, **{**TOOLS[tool], **wrong}), 400)
    assert store.stub.asked == []


BODIES = [b"{", b"[]", b'"a"', b"1", b"null", b"\xff", b'{"path": "\\ud800"}', b"[" * 5000, b'{"path":"a.md"} x', b" "]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
@pytest.mark.parametrize("tool", ["getContext", "listNotes"])
def test_a_body_that_is_no_object_is_400(store: NoteStore, tool: str, body: bytes) -> None:
    with store.client as client:
        failure(client.post(f"/api/{tool}", content=body, headers={"Content-Type": "application/json"}), 400)
    assert store.stub.asked == []


@requirement("notestore.post-and-envelope")
def test_a_body_of_another_kind_is_refused(store: NoteStore) -> None:
    with store.client as client:
        answer = client.post("/api/getContext", content=b'{"path":"a.md"}', headers={"Content-Type": "text/plain"})
    failure(answer, 400)


PATHS = [
    *["", "/", "/etc/passwd", "../a.md", "a/../../b.md", "a//b.md", "./a.md", "a/", "a\\b.md", "a?.md", "a:b.md"],
    *["a b/100%/ä#?.md", ".obsidian/app.json", "a/.trash/b.md", "nul\0.md", "a\nb.md", "CON.md", "a./b.md"],
    *["x" * 256 + ".md", "a/" * 600 + "b.md"],
]


@pytest.mark.parametrize("path", PATHS, ids=range(len(PATHS)))
def test_a_path_that_a_vault_must_not_hold_reaches_no_plugin(store: NoteStore, path: str) -> None:
    for tool in ON_A_NOTE:
        failure(store.call(tool, **{**TOOLS[tool], "path": path}), 400)
    assert store.stub.asked == []


def test_a_file_that_is_no_text_is_400(store: NoteStore) -> None:
    store.write("a.md", b"\xff\xfe\x00")
    assert "UTF-8" in failure(store.call("getContext", path="a.md"), 400)
    failure(store.call("manageTags", **TOOLS["manageTags"]), 400)
    assert (store.stub.root / "a.md").read_bytes() == b"\xff\xfe\x00"


@pytest.mark.parametrize("tool", ["manageTags", "manageFrontmatter"])
def test_frontmatter_that_cannot_be_read_is_not_edited(store: NoteStore, tool: str) -> None:
    store.write("a.md", "---\na: [\n---\nbody")
    failure(store.call(tool, **TOOLS[tool]), 400)
    assert store.text("a.md") == "---\na: [\n---\nbody"


def test_tags_that_are_a_mapping_are_not_edited(store: NoteStore) -> None:
    store.write("a.md", "---\ntags: {a: b}\n---\nbody")
    failure(store.call("manageTags", **TOOLS["manageTags"]), 400)


def test_a_name_in_other_letters_is_409(store: NoteStore) -> None:
    store.write("Notes/a.md", "x")
    store.write("notes.md", "x")
    for path in ("notes/b.md", "Notes/A.md", "Notes.MD"):
        failure(store.call("appendContext", path=path, content="x"), 409)
    assert sorted(path.name for path in store.stub.root.iterdir()) == ["Notes", "notes.md"]


@requirement("notestore.post-and-envelope")
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_another_method_is_405(store: NoteStore, method: str) -> None:
    with store.client as client:
        answer = client.request(method, "/api/getContext")
    assert answer.headers["allow"] == "POST"
    if method != "HEAD":
        failure(answer, 405)
    assert answer.status_code == 405


@pytest.mark.parametrize("path", ["/", "/api", "/api/", "/api/none", "/api/getcontext", "/api/getContext/", "/x%0Ay"])
def test_an_unknown_path_is_404(store: NoteStore, path: str) -> None:
    with store.client as client:
        failure(client.post(path, json={}), 404)
        failure(client.get(path), 404)


def test_a_body_has_a_largest_size(store: NoteStore) -> None:
    failure(store.call("updateNote", path="a.md", content="x" * 20_000_001), 413)
    assert store.stub.asked == []
    assert store.data("appendContext", path="a.md", content="x" * 19_000_000) == {"path": "a.md"}


def test_a_caller_that_leaves_half_way_leaves_nothing_behind(store: NoteStore) -> None:
    port = httpx.URL(store.address).port
    assert port is not None
    head = f"POST /api/updateNote HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 50\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + b'{"path":"a.md"')
    assert store.data("listNotes") == {"notes": []}
    assert "Traceback" not in store.log.read_text()


MOODS = {
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
@pytest.mark.parametrize(("mood", "status"), MOODS.items())
@pytest.mark.parametrize("tool", TOOLS)
def test_a_plugin_that_fails_is_502(store: NoteStore, tool: str, mood: str, status: int) -> None:
    store.write("a.md", "x")
    store.stub.mood = mood
    failure(store.call(tool, **TOOLS[tool]), status)
    assert store.text("a.md") == "x" or mood == "truncated"


@requirement("notestore.failure-status")
def test_a_key_that_the_plugin_does_not_know_is_502_and_says_whose(tmp_path: Path) -> None:
    with plugin(tmp_path / "vault") as stub, note_store(stub, tmp_path / "log", NOTES_API_KEY="wrong-5dd1") as store:
        assert "NOTES_API_KEY" in failure(store.call("getContext", path="a.md"), 502)
        assert "NOTES_API_KEY" in store.log.read_text()
        assert "wrong-5dd1" not in store.log.read_text()


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NoteStore]:
    """Waits half a second for a plugin that first hangs and then is gone."""
    folder = tmp_path_factory.mktemp("hasty")
    with plugin(folder / "vault") as stub:
        stub.mood = "slow"
        with note_store(stub, folder / "log", NOTES_TIMEOUT="0.5") as store:
            yield store


@requirement("notestore.failure-status")
def test_a_plugin_that_hangs_is_504(hasty: NoteStore) -> None:
    assert "in time" in failure(hasty.call("getContext", path="a.md"), 504)


def test_who_waits_behind_a_plugin_that_hangs_does_not_wait_for_each_other(hasty: NoteStore) -> None:
    """One after the other they would take 120 seconds."""
    started = time.monotonic()
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda _: hasty.call("deleteNote", path="a.md"), range(240)))
    assert {answer.status_code for answer in answers} == {504}
    assert time.monotonic() - started < 60


@requirement("notestore.failure-status")
def test_a_plugin_that_is_down_is_502_until_it_is_back(tmp_path: Path) -> None:
    with plugin(tmp_path / "vault") as stub:
        port = httpx.URL(stub.address).port
        assert port is not None
    with note_store(stub, tmp_path / "log") as store:
        for tool in TOOLS:
            assert "unreachable" in failure(store.call(tool, **TOOLS[tool]), 502)
        store.write("a.md", "back")
        with plugin(tmp_path / "vault", port=port):
            assert store.data("getContext", path="a.md")["content"] == "back"
        assert "Traceback" not in store.log.read_text()


def test_a_name_that_does_not_exist_is_502(tmp_path: Path) -> None:
    with plugin(tmp_path / "vault") as stub:
        stub.address = "http://nobody.invalid:27123"
        with note_store(stub, tmp_path / "log") as store:
            failure(store.call("getContext", path="a.md"), 502)
