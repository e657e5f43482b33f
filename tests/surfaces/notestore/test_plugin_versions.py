"""The note store with each version of the plugin, over HTTP and HTTPS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.requirements import requirement
from tests.surfaces.notestore.note_store import KEY, NoteStore, run_note_store
from tests.vaultplugin.certificate import self_signed
from tests.vaultplugin.server import KEY as PLUGIN_KEY
from tests.vaultplugin.server import plugin

PATH = "a b/100%/ä#.md"
ENCODED = "/vault/a%20b/100%25/%C3%A4%23.md"


def use_every_tool(store: NoteStore) -> None:
    store.data("appendContext", path=PATH, content="begin")
    store.data("updateNote", path=PATH, content="one needle\n")
    store.data("appendContext", path=PATH, content="two")
    for value in ("x", "", None, {"a": [1]}):
        store.data("manageFrontmatter", path=PATH, key="schlüssel", value=value)
    assert store.data("manageTags", path=PATH, tags=["#a", "b"], action="add")["tags"] == ["a", "b"]
    assert store.data("manageTags", path=PATH, tags=["a"], action="remove")["tags"] == ["b"]
    assert store.data("searchReplace", path=PATH, search="one", replace="1")["replacements"] == 1
    results = store.data("searchNotes", query="NEEDLE")["results"]
    assert [row["path"] for row in results] == [PATH]
    assert "1 needle" in results[0]["excerpt"]
    assert store.data("listNotes") == {"notes": [PATH]}
    content = store.data("getContext", path=PATH)["content"]
    assert content == "---\nschlüssel:\n  a:\n  - 1\ntags:\n- b\n---\n1 needle\ntwo"
    store.data("deleteNote", path=PATH)
    assert store.data("listNotes") == {"notes": []}


@requirement("notestore.plugin-calls")
@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_every_tool_works_with_every_plugin_version(store: NoteStore, version: int) -> None:
    store.stub.version = version
    use_every_tool(store)
    changed_paths = {
        request.raw_path for request in store.stub.requests if request.method in ("PUT", "POST", "PATCH", "DELETE")
    }
    assert changed_paths == {ENCODED, "/search/simple/"}


@requirement("notestore.plugin-certificate-and-key")
def test_every_tool_works_with_a_self_signed_certificate(tmp_path: Path) -> None:
    tls = self_signed(tmp_path)
    with plugin(tmp_path / "vault", tls=tls) as stub, run_note_store(stub, tmp_path / "log") as store:
        assert stub.address.startswith("https://")
        use_every_tool(store)
        assert {request.headers["authorization"] for request in stub.requests} == {f"Bearer {PLUGIN_KEY}"}
        assert KEY not in str(stub.requests)
        assert {line.split()[2] for line in store.log.read_text().splitlines()} == {"INFO"}
