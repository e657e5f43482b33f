"""The note store before each version of the plugin, over HTTP and HTTPS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.requirements import requirement
from tests.surfaces.notestore.running import KEY, NoteStore, note_store
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
    found = store.data("searchNotes", query="NEEDLE")["results"]
    assert [row["path"] for row in found] == [PATH]
    assert "1 needle" in found[0]["excerpt"]
    assert store.data("listNotes") == {"notes": [PATH]}
    content = store.data("getContext", path=PATH)["content"]
    assert content == "---\nschlüssel:\n  a:\n  - 1\ntags:\n- b\n---\n1 needle\ntwo"
    store.data("deleteNote", path=PATH)
    assert store.data("listNotes") == {"notes": []}


@requirement("notestore.plugin-calls")
@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_every_tool_works_with_every_version(store: NoteStore, version: int) -> None:
    store.stub.version = version
    use_every_tool(store)
    files = {asked.raw_path for asked in store.stub.asked if asked.method in ("PUT", "POST", "PATCH", "DELETE")}
    assert files == {ENCODED, "/search/simple/"}


@requirement("notestore.plugin-certificate-and-key")
def test_every_tool_works_over_a_certificate_that_signs_itself(tmp_path: Path) -> None:
    tls = self_signed(tmp_path)
    with plugin(tmp_path / "vault", tls=tls) as stub, note_store(stub, tmp_path / "log") as store:
        assert stub.address.startswith("https://")
        use_every_tool(store)
        assert {asked.headers["authorization"] for asked in stub.asked} == {f"Bearer {PLUGIN_KEY}"}
        assert KEY not in str(stub.asked)
        assert {line.split()[2] for line in store.log.read_text().splitlines()} == {"INFO"}
