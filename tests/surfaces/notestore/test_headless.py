"""The nine tools with `stentor vault`; both servers are processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from stentor_vault.notes import frontmatter
from tests.requirements import requirement
from tests.surfaces.notestore.headless import HeadlessNoteStore

TOOLS: dict[str, dict[str, Any]] = {
    "getContext": {"path": "a.md"},
    "appendContext": {"path": "a.md", "content": "x"},
    "updateNote": {"path": "a.md", "content": "x"},
    "searchNotes": {"query": "x"},
    "listNotes": {},
    "deleteNote": {"path": "a.md"},
    "manageFrontmatter": {"path": "a.md", "key": "k", "value": 1},
    "manageTags": {"path": "a.md", "tags": ["t"], "action": "add"},
    "searchReplace": {"path": "a.md", "search": "x", "replace": "y"},
}
PATH_TO_ENCODE = "a b/100%/ä#%2F+&.md"


def expect_failure(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"success", "error"}
    assert body["success"] is False
    assert body["error"]
    return str(body["error"])


@requirement("notestore.get-context", "notestore.append-context", "notestore.headless-vault")
def test_append_creates_a_missing_note_and_adds_lines(notes: HeadlessNoteStore) -> None:
    assert notes.data("appendContext", path="new/a.md", content="one") == {"path": "new/a.md"}
    notes.data("appendContext", path="new/a.md", content="two ä\n")
    assert notes.data("getContext", path="new/a.md") == {"path": "new/a.md", "content": "one\ntwo ä\n"}


@requirement("notestore.update-and-delete")
def test_update_note_replaces_and_delete_note_removes_the_file(notes: HeadlessNoteStore) -> None:
    (notes.root / "a.md").write_text("---\na: 1\n---\nold")
    notes.data("updateNote", path="a.md", content="new")
    assert (notes.root / "a.md").read_text() == "new"
    notes.data("updateNote", path="a.md", content="")
    assert (notes.root / "a.md").read_text() == ""
    assert notes.data("deleteNote", path="a.md") == {"path": "a.md"}
    assert not (notes.root / "a.md").exists()


@requirement("notestore.search-notes")
def test_search_returns_paths_excerpts_and_scores(notes: HeadlessNoteStore) -> None:
    notes.data("appendContext", path="deep/a.md", content="The quixotic harbour.")
    notes.data("appendContext", path="b.md", content="nothing")
    data = notes.data("searchNotes", query="Quixotic")
    assert data["query"] == "Quixotic"
    (hit,) = data["results"]
    assert (hit["path"], hit["excerpt"]) == ("deep/a.md", "The quixotic harbour.")
    assert hit["score"] > 0
    assert notes.data("searchNotes", query="nowhere & ?#%")["results"] == []


@requirement("notestore.list-notes")
def test_list_notes_returns_markdown_files_only(notes: HeadlessNoteStore) -> None:
    for path in ("b.md", "a/x.md", "a/deep/er/y.md", PATH_TO_ENCODE):
        notes.data("appendContext", path=path, content="x")
    (notes.root / "image.png").write_bytes(b"\0")
    assert notes.data("listNotes") == {"notes": sorted(["b.md", "a/x.md", "a/deep/er/y.md", PATH_TO_ENCODE])}


@requirement("notestore.manage-frontmatter")
@pytest.mark.parametrize("value", ["text", "", None, True, 5, 1.5, ["a", 1], {"k": [None]}, "ä: '\n"])
def test_manage_frontmatter_sets_one_key_and_keeps_all_other_bytes(notes: HeadlessNoteStore, value: Any) -> None:
    (notes.root / "a.md").write_bytes(b"---\r\nkeep: 0123 # mine\r\nkey: old\r\n---\r\nbody\r\n")
    for key in ("key", "new ä/%"):
        assert notes.data("manageFrontmatter", path="a.md", key=key, value=value)["value"] == value
    raw = (notes.root / "a.md").read_bytes()
    assert raw.startswith(b"---\r\nkeep: 0123 # mine\r\n")
    assert raw.endswith(b"---\r\nbody\r\n")
    fields = frontmatter.read(raw.decode())
    assert (fields["key"], fields["new ä/%"]) == (value, value)


@requirement("notestore.manage-tags")
def test_manage_tags_supports_lists_and_comma_separated_tags(notes: HeadlessNoteStore) -> None:
    for block, present in (("", []), ("---\ntags: [a, b]\n---\n", ["a", "b"]), ("---\ntags: a, b\n---\n", ["a", "b"])):
        (notes.root / "a.md").write_text(block + "body")
        added = notes.data("manageTags", path="a.md", tags=["#c", "a", "c"], action="add")["tags"]
        assert added == list(dict.fromkeys([*present, "c", "a"]))
        assert frontmatter.read((notes.root / "a.md").read_text())["tags"] == added
        removed = notes.data("manageTags", path="a.md", tags=["a", "none"], action="remove")["tags"]
        assert removed == [tag for tag in added if tag != "a"]
    assert expect_failure(notes.call("manageTags", path="a.md", tags=["a"], action="toggle"), 400)


@requirement("notestore.manage-tags")
def test_tags_of_32_concurrent_clients_are_all_kept(notes: HeadlessNoteStore) -> None:
    notes.data("appendContext", path="a.md", content="x")
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda i: notes.data("manageTags", path="a.md", tags=[f"t{i}"], action="add"), range(32)))
    tags = frontmatter.read((notes.root / "a.md").read_text())["tags"]
    assert sorted(tags) == sorted(f"t{i}" for i in range(32))


@requirement("notestore.search-replace")
def test_search_replace_treats_both_texts_literally(notes: HeadlessNoteStore) -> None:
    (notes.root / "a.md").write_bytes(b"a.c abc a.c\r\n")
    assert notes.data("searchReplace", path="a.md", search="a.c", replace=r"\1$&") == {
        "path": "a.md",
        "replacements": 2,
    }
    assert (notes.root / "a.md").read_bytes() == rb"\1$& abc \1$&" + b"\r\n"
    assert notes.data("searchReplace", path="a.md", search="none", replace="")["replacements"] == 0


@requirement("notestore.plugin-calls")
def test_path_segments_are_percent_encoded(notes: HeadlessNoteStore) -> None:
    notes.data("appendContext", path=PATH_TO_ENCODE, content="one")
    assert (notes.root / "a b" / "100%" / "ä#%2F+&.md").read_text() == "one"
    assert notes.data("getContext", path=PATH_TO_ENCODE)["content"] == "one"
    notes.data("manageFrontmatter", path=PATH_TO_ENCODE, key="k", value=1)
    notes.data("searchReplace", path=PATH_TO_ENCODE, search="one", replace="two")
    notes.data("deleteNote", path=PATH_TO_ENCODE)
    assert not (notes.root / "a b" / "100%" / "ä#%2F+&.md").exists()


@requirement("notestore.auth-403")
@pytest.mark.parametrize("header", ["", "Bearer wrong", "Basic agents-key-2b6d", "agents-key-2b6d"])
def test_every_route_returns_403_without_the_key(notes: HeadlessNoteStore, header: str) -> None:
    (notes.root / "a.md").write_text("secret")
    for path in [*(f"/api/{tool}" for tool in TOOLS), "/api/none", "/"]:
        response = notes.http.post(path, json={"path": "a.md"}, headers={"Authorization": header})
        assert "secret" not in expect_failure(response, 403)
    assert (notes.root / "a.md").exists()


@requirement("notestore.health-open")
def test_health_check_needs_no_key(notes: HeadlessNoteStore) -> None:
    response = notes.http.get("/health", headers={"Authorization": ""})
    assert (response.status_code, response.json()["status"]) == (200, "ok")


@requirement("notestore.post-and-envelope", "notestore.failure-status")
def test_invalid_requests_return_the_failure_body(notes: HeadlessNoteStore) -> None:
    for tool, fields in TOOLS.items():
        assert expect_failure(notes.http.get(f"/api/{tool}"), 405)
        if tool not in ("searchNotes", "listNotes", "appendContext"):
            assert expect_failure(notes.call(tool, fields), 404)
        for name in fields:
            assert name in expect_failure(notes.call(tool, {k: v for k, v in fields.items() if k != name}), 400)
            if name != "value":
                assert name in expect_failure(notes.call(tool, fields | {name: 5}), 400)
    for content in (b"{", b"[]", b"5", b"\xff", b'{"a":' * 2000, b"null"):
        headers = {"Content-Type": "application/json"}
        expect_failure(notes.http.post("/api/listNotes", content=content, headers=headers), 400)
    expect_failure(notes.http.post("/api/listNotes", content="x=1", headers={"Content-Type": "text/plain"}), 400)
    expect_failure(notes.call("none"), 404)
    expect_failure(notes.call("appendContext", path="a.md", content="x" * 20_000_001), 413)
    for path in ("../x.md", "/etc/passwd", "a/../../x.md", ".obsidian/x", "a\0.md", "a\\b.md"):
        expect_failure(notes.call("getContext", path=path), 400)
    assert list(notes.root.iterdir()) == []


NOTE_TOOLS = [tool for tool, fields in TOOLS.items() if "path" in fields]
PATHS_WITHOUT_A_NOTE = [
    "fold.md",
    "fold.md/a.md/b.md",
    "fold.md/a.md/heading/A.md",
    "fold.md/none.md/heading/A.md",
]
PATHS_WITHOUT_MD_SUFFIX = ["plan", "plan.txt", "fold.md/er", "fold.md/a.md/heading/A", "fold.md/a.md/frontmatter/tags"]


@requirement("notestore.failure-status")
@pytest.mark.parametrize("path", PATHS_WITHOUT_A_NOTE)
def test_folders_and_parts_of_notes_are_not_notes(notes: HeadlessNoteStore, path: str) -> None:
    content = "---\ntags: [a]\n---\n# A\nx e\n"
    notes.data("appendContext", path="fold.md/a.md", content=content)
    for tool in NOTE_TOOLS:
        is_conflict = tool == "appendContext" and path == "fold.md"
        expect_failure(notes.call(tool, TOOLS[tool] | {"path": path}), 409 if is_conflict else 404)
        expect_failure(notes.call("manageFrontmatter", path=path, key="k", value=""), 404)
    assert notes.data("listNotes") == {"notes": ["fold.md/a.md"]}
    assert (notes.root / "fold.md/a.md").read_text() == content


@requirement("notestore.paths-of-notes")
@pytest.mark.parametrize("path", PATHS_WITHOUT_MD_SUFFIX)
def test_path_without_md_suffix_returns_400_for_every_tool(notes: HeadlessNoteStore, path: str) -> None:
    notes.data("appendContext", path="fold.md/a.md", content="x")
    (notes.root / "plan.txt").write_text("x")
    for tool in NOTE_TOOLS:
        assert "must end in .md" in expect_failure(notes.call(tool, TOOLS[tool] | {"path": path}), 400)
    assert sorted(file.name for file in notes.root.rglob("*")) == ["a.md", "fold.md", "plan.txt"]
    assert (notes.root / "plan.txt").read_text() == "x"


@requirement("notestore.get-context")
def test_note_in_a_folder_named_like_a_note_is_read(notes: HeadlessNoteStore) -> None:
    for path in ("x.md/heading/A.md", "frontmatter/tags.md", "list.md", "list.md.d/list.MD"):
        file = notes.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"files": ["a"]}')
        assert notes.data("getContext", path=path)["content"] == '{"files": ["a"]}'
    expect_failure(notes.call("getContext", path="x.md"), 404)


@requirement("notestore.manage-frontmatter", "notestore.manage-tags")
def test_frontmatter_of_a_note_above_the_patch_size_limit_is_edited(notes: HeadlessNoteStore) -> None:
    body = "# Long\r\n" + "ä" * 1_000_001
    (notes.root / "a.md").write_bytes(f"---\r\nkeep: '01' # mine\r\n---\r\n{body}".encode())
    notes.data("manageFrontmatter", path="a.md", key="k", value={"a": [""]})
    assert notes.data("manageTags", path="a.md", tags=["t"], action="add")["tags"] == ["t"]
    text = (notes.root / "a.md").read_bytes().decode()
    assert frontmatter.read(text) == {"keep": "01", "k": {"a": [""]}, "tags": ["t"]}
    assert text.startswith("---\r\nkeep: '01' # mine\r\n")
    assert text.endswith(f"---\r\n{body}")


@requirement("notestore.search-notes", "notestore.failure-status")
def test_blank_search_query_returns_400(notes: HeadlessNoteStore) -> None:
    expect_failure(notes.call("searchNotes", query=" "), 400)


@requirement("notestore.extra-fields-ignored")
def test_unknown_fields_are_ignored(notes: HeadlessNoteStore) -> None:
    for tool, fields in TOOLS.items():
        (notes.root / "a.md").write_text("x")
        assert notes.call(tool, fields | {"more": 1, "vault": "main"}).status_code == 200


def test_search_finds_a_note_right_after_its_write(notes: HeadlessNoteStore) -> None:
    for i in range(5):
        notes.data("appendContext", path=f"{i}.md", content=f"unique{i}")
        assert [hit["path"] for hit in notes.data("searchNotes", query=f"unique{i}")["results"]] == [f"{i}.md"]
