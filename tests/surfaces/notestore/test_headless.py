"""The nine tools against `stentor vault`, both as processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from stentor_vault.notes import frontmatter
from tests.requirements import requirement
from tests.surfaces.notestore.headless import Notes

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
NASTY = "a b/100%/ä#%2F+&.md"


def failed(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"success", "error"}
    assert body["success"] is False
    assert body["error"]
    return str(body["error"])


@requirement("notestore.get-context", "notestore.append-context", "notestore.headless-vault")
def test_a_note_is_read_and_appended_to_and_made_when_missing(notes: Notes) -> None:
    assert notes.data("appendContext", path="new/a.md", content="one") == {"path": "new/a.md"}
    notes.data("appendContext", path="new/a.md", content="two ä\n")
    assert notes.data("getContext", path="new/a.md") == {"path": "new/a.md", "content": "one\ntwo ä\n"}


@requirement("notestore.update-and-delete")
def test_a_note_is_replaced_and_deleted(notes: Notes) -> None:
    (notes.root / "a.md").write_text("---\na: 1\n---\nold")
    notes.data("updateNote", path="a.md", content="new")
    assert (notes.root / "a.md").read_text() == "new"
    notes.data("updateNote", path="a.md", content="")
    assert (notes.root / "a.md").read_text() == ""
    assert notes.data("deleteNote", path="a.md") == {"path": "a.md"}
    assert not (notes.root / "a.md").exists()


@requirement("notestore.search-notes")
def test_a_search_answers_paths_excerpts_and_scores(notes: Notes) -> None:
    notes.data("appendContext", path="deep/a.md", content="The quixotic harbour.")
    notes.data("appendContext", path="b.md", content="nothing")
    found = notes.data("searchNotes", query="Quixotic")
    assert found["query"] == "Quixotic"
    (hit,) = found["results"]
    assert (hit["path"], hit["excerpt"]) == ("deep/a.md", "The quixotic harbour.")
    assert hit["score"] > 0
    assert notes.data("searchNotes", query="nowhere & ?#%")["results"] == []


@requirement("notestore.list-notes")
def test_all_notes_are_listed_and_only_notes(notes: Notes) -> None:
    for path in ("b.md", "a/x.md", "a/deep/er/y.md", NASTY):
        notes.data("appendContext", path=path, content="x")
    (notes.root / "image.png").write_bytes(b"\0")
    assert notes.data("listNotes") == {"notes": sorted(["b.md", "a/x.md", "a/deep/er/y.md", NASTY])}


@requirement("notestore.manage-frontmatter")
@pytest.mark.parametrize("value", ["text", "", None, True, 5, 1.5, ["a", 1], {"k": [None]}, "ä: '\n"])
def test_a_frontmatter_key_takes_any_value_and_nothing_else_changes(notes: Notes, value: Any) -> None:
    (notes.root / "a.md").write_bytes(b"---\r\nkeep: 0123 # mine\r\nkey: old\r\n---\r\nbody\r\n")
    for key in ("key", "new ä/%"):
        assert notes.data("manageFrontmatter", path="a.md", key=key, value=value)["value"] == value
    raw = (notes.root / "a.md").read_bytes()
    assert raw.startswith(b"---\r\nkeep: 0123 # mine\r\n")
    assert raw.endswith(b"---\r\nbody\r\n")
    found = frontmatter.read(raw.decode())
    assert (found["key"], found["new ä/%"]) == (value, value)


@requirement("notestore.manage-tags")
def test_tags_are_added_and_removed_however_they_are_written(notes: Notes) -> None:
    for block, present in (("", []), ("---\ntags: [a, b]\n---\n", ["a", "b"]), ("---\ntags: a, b\n---\n", ["a", "b"])):
        (notes.root / "a.md").write_text(block + "body")
        added = notes.data("manageTags", path="a.md", tags=["#c", "a", "c"], action="add")["tags"]
        assert added == list(dict.fromkeys([*present, "c", "a"]))
        assert frontmatter.read((notes.root / "a.md").read_text())["tags"] == added
        removed = notes.data("manageTags", path="a.md", tags=["a", "none"], action="remove")["tags"]
        assert removed == [tag for tag in added if tag != "a"]
    assert failed(notes.call("manageTags", path="a.md", tags=["a"], action="toggle"), 400)


@requirement("notestore.manage-tags")
def test_of_32_clients_that_add_a_tag_none_is_lost(notes: Notes) -> None:
    notes.data("appendContext", path="a.md", content="x")
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda i: notes.data("manageTags", path="a.md", tags=[f"t{i}"], action="add"), range(32)))
    found = frontmatter.read((notes.root / "a.md").read_text())["tags"]
    assert sorted(found) == sorted(f"t{i}" for i in range(32))


@requirement("notestore.search-replace")
def test_what_is_replaced_is_taken_literally(notes: Notes) -> None:
    (notes.root / "a.md").write_bytes(b"a.c abc a.c\r\n")
    assert notes.data("searchReplace", path="a.md", search="a.c", replace=r"\1$&") == {
        "path": "a.md",
        "replacements": 2,
    }
    assert (notes.root / "a.md").read_bytes() == rb"\1$& abc \1$&" + b"\r\n"
    assert notes.data("searchReplace", path="a.md", search="none", replace="")["replacements"] == 0


@requirement("notestore.plugin-calls")
def test_a_path_is_encoded_segment_by_segment(notes: Notes) -> None:
    notes.data("appendContext", path=NASTY, content="one")
    assert (notes.root / "a b" / "100%" / "ä#%2F+&.md").read_text() == "one"
    assert notes.data("getContext", path=NASTY)["content"] == "one"
    notes.data("manageFrontmatter", path=NASTY, key="k", value=1)
    notes.data("searchReplace", path=NASTY, search="one", replace="two")
    notes.data("deleteNote", path=NASTY)
    assert not (notes.root / "a b" / "100%" / "ä#%2F+&.md").exists()


@requirement("notestore.auth-403")
@pytest.mark.parametrize("header", ["", "Bearer wrong", "Basic agents-key-2b6d", "agents-key-2b6d"])
def test_without_the_token_every_route_is_403(notes: Notes, header: str) -> None:
    (notes.root / "a.md").write_text("secret")
    for path in [*(f"/api/{tool}" for tool in TOOLS), "/api/none", "/"]:
        answer = notes.http.post(path, json={"path": "a.md"}, headers={"Authorization": header})
        assert "secret" not in failed(answer, 403)
    assert (notes.root / "a.md").exists()


@requirement("notestore.health-open")
def test_health_needs_no_token(notes: Notes) -> None:
    answer = notes.http.get("/health", headers={"Authorization": ""})
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")


@requirement("notestore.post-and-envelope", "notestore.failure-status")
def test_what_is_wrong_is_told_in_the_failure_body(notes: Notes) -> None:
    for tool, fields in TOOLS.items():
        assert failed(notes.http.get(f"/api/{tool}"), 405)
        if tool not in ("searchNotes", "listNotes", "appendContext"):
            assert failed(notes.call(tool, fields), 404)
        for name in fields:
            assert name in failed(notes.call(tool, {k: v for k, v in fields.items() if k != name}), 400)
            if name != "value":
                assert name in failed(notes.call(tool, fields | {name: 5}), 400)
    for content in (b"{", b"[]", b"5", b"\xff", b'{"a":' * 2000, b"null"):
        headers = {"Content-Type": "application/json"}
        failed(notes.http.post("/api/listNotes", content=content, headers=headers), 400)
    failed(notes.http.post("/api/listNotes", content="x=1", headers={"Content-Type": "text/plain"}), 400)
    failed(notes.call("none"), 404)
    failed(notes.call("appendContext", path="a.md", content="x" * 20_000_001), 413)
    for path in ("../x.md", "/etc/passwd", "a/../../x.md", ".obsidian/x", "a\0.md", "a\\b.md"):
        failed(notes.call("getContext", path=path), 400)
    assert list(notes.root.iterdir()) == []


ON_A_NOTE = [tool for tool, fields in TOOLS.items() if "path" in fields]
NO_NOTES = [
    "fold.md",
    "fold.md/a.md/b.md",
    "fold.md/a.md/heading/A.md",
    "fold.md/none.md/heading/A.md",
]
NO_PATHS_OF_NOTES = ["plan", "plan.txt", "fold.md/er", "fold.md/a.md/heading/A", "fold.md/a.md/frontmatter/tags"]


@requirement("notestore.failure-status")
@pytest.mark.parametrize("path", NO_NOTES)
def test_a_folder_a_part_of_a_note_and_what_is_behind_one_are_no_notes(notes: Notes, path: str) -> None:
    kept = "---\ntags: [a]\n---\n# A\nx e\n"
    notes.data("appendContext", path="fold.md/a.md", content=kept)
    for tool in ON_A_NOTE:
        taken = tool == "appendContext" and path == "fold.md"
        failed(notes.call(tool, TOOLS[tool] | {"path": path}), 409 if taken else 404)
        failed(notes.call("manageFrontmatter", path=path, key="k", value=""), 404)
    assert notes.data("listNotes") == {"notes": ["fold.md/a.md"]}
    assert (notes.root / "fold.md/a.md").read_text() == kept


@requirement("notestore.paths-of-notes")
@pytest.mark.parametrize("path", NO_PATHS_OF_NOTES)
def test_a_path_that_does_not_end_in_md_is_400_for_every_tool(notes: Notes, path: str) -> None:
    notes.data("appendContext", path="fold.md/a.md", content="x")
    (notes.root / "plan.txt").write_text("x")
    for tool in ON_A_NOTE:
        assert "must end in .md" in failed(notes.call(tool, TOOLS[tool] | {"path": path}), 400)
    assert sorted(file.name for file in notes.root.rglob("*")) == ["a.md", "fold.md", "plan.txt"]
    assert (notes.root / "plan.txt").read_text() == "x"


@requirement("notestore.get-context")
def test_a_note_in_folders_that_look_like_a_note_and_its_part_is_a_note(notes: Notes) -> None:
    for path in ("x.md/heading/A.md", "frontmatter/tags.md", "list.md", "list.md.d/list.MD"):
        file = notes.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"files": ["a"]}')
        assert notes.data("getContext", path=path)["content"] == '{"files": ["a"]}'
    failed(notes.call("getContext", path="x.md"), 404)


@requirement("notestore.manage-frontmatter", "notestore.manage-tags")
def test_the_frontmatter_of_a_note_too_long_for_the_plugins_patch_is_edited(notes: Notes) -> None:
    body = "# Long\r\n" + "ä" * 1_000_001
    (notes.root / "a.md").write_bytes(f"---\r\nkeep: '01' # mine\r\n---\r\n{body}".encode())
    notes.data("manageFrontmatter", path="a.md", key="k", value={"a": [""]})
    assert notes.data("manageTags", path="a.md", tags=["t"], action="add")["tags"] == ["t"]
    text = (notes.root / "a.md").read_bytes().decode()
    assert frontmatter.read(text) == {"keep": "01", "k": {"a": [""]}, "tags": ["t"]}
    assert text.startswith("---\r\nkeep: '01' # mine\r\n")
    assert text.endswith(f"---\r\n{body}")


@requirement("notestore.search-notes", "notestore.failure-status")
def test_a_search_for_nothing_is_400(notes: Notes) -> None:
    failed(notes.call("searchNotes", query=" "), 400)


@requirement("notestore.extra-fields-ignored")
def test_fields_that_a_tool_does_not_know_are_ignored(notes: Notes) -> None:
    for tool, fields in TOOLS.items():
        (notes.root / "a.md").write_text("x")
        assert notes.call(tool, fields | {"more": 1, "vault": "main"}).status_code == 200


def test_a_search_sees_what_was_just_written(notes: Notes) -> None:
    for i in range(5):
        notes.data("appendContext", path=f"{i}.md", content=f"unique{i}")
        assert [hit["path"] for hit in notes.data("searchNotes", query=f"unique{i}")["results"]] == [f"{i}.md"]
