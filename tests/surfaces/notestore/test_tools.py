"""The nine tools over HTTP; the tests compare the files in the plugin's folder."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.surfaces.notestore import tools as note_tools
from stentor_vault.notes.model import NoteTooLarge
from tests.requirements import requirement
from tests.surfaces.notestore.note_store import TOOLS, NoteStore

NOTE = "---\ntitle: One\ntags:\n  - old\n---\n# Head\nbody\n"


@requirement("notestore.post-and-envelope")
@pytest.mark.parametrize("tool", TOOLS)
def test_every_tool_returns_an_object_in_the_envelope(store: NoteStore, tool: str) -> None:
    store.write("a.md", NOTE)
    assert isinstance(store.data(tool, **TOOLS[tool]), dict)


@requirement("notestore.get-context")
def test_get_context_returns_the_whole_file(store: NoteStore) -> None:
    store.write("a/ä.md", "\ufeff---\r\na: 1\r\n---\r\nbody 😀")
    assert store.data("getContext", path="a/ä.md") == {
        "path": "a/ä.md",
        "content": "\ufeff---\r\na: 1\r\n---\r\nbody 😀",
    }


@requirement("notestore.append-context")
def test_append_context_creates_the_note_and_adds_lines(store: NoteStore) -> None:
    assert store.data("appendContext", path="new/a.md", content="one") == {"path": "new/a.md"}
    assert store.data("appendContext", path="new/a.md", content="two\n") == {"path": "new/a.md"}
    assert store.data("appendContext", path="new/a.md", content="three")["path"] == "new/a.md"
    assert store.text("new/a.md") == "one\ntwo\nthree"


@requirement("notestore.update-and-delete")
def test_update_note_replaces_the_whole_file(store: NoteStore) -> None:
    store.write("a.md", NOTE)
    for content in ("new", ""):
        assert store.data("updateNote", path="a.md", content=content) == {"path": "a.md"}
        assert store.text("a.md") == content


@pytest.mark.parametrize("content", ["\ufeffmark", "a\r\nb", "ä日😀", "---\n---\n"])
def test_get_context_returns_exactly_the_content_of_update_note(store: NoteStore, content: str) -> None:
    store.write("a.md", "")
    store.data("updateNote", path="a.md", content=content)
    assert store.text("a.md") == store.data("getContext", path="a.md")["content"] == content


@requirement("notestore.update-and-delete")
def test_delete_note_returns_404_the_second_time(store: NoteStore) -> None:
    store.write("a.md", NOTE)
    assert store.data("deleteNote", path="a.md") == {"path": "a.md"}
    assert not (store.stub.root / "a.md").exists()
    assert store.call("deleteNote", path="a.md").status_code == 404


@requirement("notestore.search-notes")
def test_search_notes_returns_path_excerpt_and_score(store: NoteStore) -> None:
    store.write("a/one.md", "a needle in the hay")
    store.write("needle.md", "needle, needle")
    store.write("other.md", "nothing")
    data = store.data("searchNotes", query="needle")
    assert data == {
        "query": "needle",
        "results": [
            {"path": "needle.md", "excerpt": "needle, needle", "score": 3.0},
            {"path": "a/one.md", "excerpt": "a needle in the hay", "score": 1.0},
        ],
    }
    assert store.data("searchNotes", query="x&query=needle#%") == {"query": "x&query=needle#%", "results": []}


def test_search_match_in_the_file_name_has_no_excerpt(store: NoteStore) -> None:
    store.write("needle.md", "body")
    assert store.data("searchNotes", query="needle")["results"][0]["excerpt"] == ""


@requirement("notestore.list-notes")
def test_list_notes_includes_the_notes_of_every_folder(store: NoteStore) -> None:
    paths = ["z.md", "a/b/c/deep.md", "a/x.md", "a b/100%/ä#.md", "b/UPPER.MD"]
    for path in [*paths, "a/picture.png", ".obsidian/app.json", ".hidden.md"]:
        store.write(path, "")
    assert store.data("listNotes") == {"notes": sorted(paths)}
    requested_paths = [request.raw_path for request in store.stub.requests]
    assert (
        requested_paths.index("/vault/a/")
        < requested_paths.index("/vault/a/b/")
        < requested_paths.index("/vault/a/b/c/")
    )


@pytest.mark.parametrize("version", [3, 5])
def test_list_notes_of_an_empty_vault_is_empty(store: NoteStore, version: int) -> None:
    store.stub.version = version
    assert store.data("listNotes") == {"notes": []}


JSON_VALUES: list[Any] = ["text", "", None, 0, -1.5, True, [], ["a", 1, None], {"a": {"b": [1]}}, "on: # off", "ä\n日"]


@requirement("notestore.manage-frontmatter")
@pytest.mark.parametrize("value", JSON_VALUES, ids=range(len(JSON_VALUES)))
@pytest.mark.parametrize("note", [NOTE, "no frontmatter\n"], ids=["with", "without"])
def test_manage_frontmatter_sets_any_json_value(store: NoteStore, note: str, value: Any) -> None:
    store.write("a.md", note)
    for key in ("title", "a new key: ä"):
        data = store.data("manageFrontmatter", path="a.md", key=key, value=value)
        assert data == {"path": "a.md", "key": key, "value": value}
        assert _read_frontmatter(store.text("a.md"))[key] == value
    assert store.text("a.md").endswith(note.partition("---\n")[2].partition("---\n")[2] or note)


def _read_frontmatter(text: str) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(text.split("---\n")[1])


TAG_CHANGES: list[tuple[str, list[str], str, list[str]]] = [
    ("body", ["a", "b"], "add", ["a", "b"]),
    ("---\ntitle: x\n---\nbody", ["a"], "add", ["a"]),
    ("---\ntags:\n---\nbody", ["a"], "add", ["a"]),
    ("---\ntags: []\n---\nbody", ["a"], "add", ["a"]),
    ("---\ntags: [a, b]\n---\nbody", ["b", "c", "c"], "add", ["a", "b", "c"]),
    ("---\ntags: one, two three\n---\nbody", ["#two", "four"], "add", ["one", "two", "three", "four"]),
    ("---\ntags: ['#a', a, b/c]\n---\nbody", ["#b/c"], "add", ["a", "b/c"]),
    ("---\ntags: [2024, a]\n---\nbody", ["2024"], "remove", ["a"]),
    ("---\ntags: [a, b, a]\n---\nbody", ["a", "none"], "remove", ["b"]),
    ("---\ntags: a\n---\nbody", ["a"], "remove", []),
    ("---\ntitle: x\n---\nbody", ["a"], "remove", []),
    ("body", ["a"], "remove", []),
]


@requirement("notestore.manage-tags")
@pytest.mark.parametrize(("note", "tags", "action", "expected"), TAG_CHANGES, ids=range(len(TAG_CHANGES)))
def test_manage_tags_adds_and_removes_tags_once(
    store: NoteStore, note: str, tags: list[str], action: str, expected: list[str]
) -> None:
    store.write("a.md", note)
    for _ in range(2):
        assert store.data("manageTags", path="a.md", tags=tags, action=action) == {"path": "a.md", "tags": expected}
    text = store.text("a.md")
    tags_in_note = _read_frontmatter(text).get("tags") if text.startswith("---") else None
    assert (tags_in_note or []) == expected
    assert text.endswith("body")


@requirement("notestore.manage-tags")
def test_manage_tags_with_an_unknown_action_returns_400(store: NoteStore) -> None:
    store.write("a.md", NOTE)
    assert store.call("manageTags", path="a.md", tags=["a"], action="set").status_code == 400
    assert store.text("a.md") == NOTE


def test_as_many_tags_as_a_request_may_have_are_compared_at_once() -> None:
    tags = [str(n) for n in range(100_000)]
    assert note_tools.apply_tags(["0", {"a": 1}, {"a": 1}], tags, "add") == ["0", {"a": 1}, *tags[1:]]
    assert note_tools.apply_tags([*tags, {"a": 1}], tags[1:], "remove") == ["0", {"a": 1}]


def test_manage_tags_without_a_change_writes_nothing(store: NoteStore) -> None:
    store.write("a.md", NOTE)
    store.data("manageTags", path="a.md", tags=["old"], action="add")
    store.data("manageTags", path="a.md", tags=["none"], action="remove")
    assert {request.method for request in store.stub.requests} == {"GET"}


@requirement("notestore.search-replace")
def test_search_replace_is_literal_and_returns_the_count(store: NoteStore) -> None:
    store.write("a.md", "a.c abc a.c $1 ä\r\n")
    assert store.data("searchReplace", path="a.md", search="a.c", replace=r"\1$&") == {
        "path": "a.md",
        "replacements": 2,
    }
    assert store.text("a.md") == "\\1$& abc \\1$& $1 ä\r\n"
    assert store.data("searchReplace", path="a.md", search="ä\r\n", replace="")["replacements"] == 1
    assert store.text("a.md") == "\\1$& abc \\1$& $1 "


@requirement("notestore.search-replace")
def test_search_replace_without_a_match_writes_nothing(store: NoteStore) -> None:
    store.write("a.md", NOTE)
    assert store.data("searchReplace", path="a.md", search="(.*)", replace="x") == {"path": "a.md", "replacements": 0}
    assert {request.method for request in store.stub.requests} == {"GET"}
    assert store.text("a.md") == NOTE


@requirement("notestore.search-replace")
@pytest.mark.parametrize(
    ("content", "search", "replace", "expected", "count"),
    [
        ("one\r\ntwo\r\n", "one\ntwo", "1\n2", "1\r\n2\r\n", 1),
        ("one\ntwo\none\r\ntwo", "one\ntwo", "1\n2", "1\n2\n1\r\n2", 2),
        ("a\r\nb\nc", "\n", " ", "a b c", 2),
        ("a\nb", "a\r\nb", "x\r\ny", "x\ny", 1),
        ("a\r\nb\r\n", "\r\n", "\n", "a\nb\n", 2),
        ("a\nb\r\nc", "\n", "\r\n", "a\r\nb\r\nc", 2),
        ("a.c\r\n", "a.c\n", r"\1$&", r"\1$&", 1),
        ("one\r\n", "one two\n", "x", "one\r\n", 0),
        ("\n\r\n\r\n\na\n\r\n", "\n\n", "\n", "\n\r\na\n", 3),
        ("x\r\r\ny\r\nz", "\ny\n", "\n", "x\r\r\nz", 1),
    ],
)
def test_search_replace_matches_any_line_ending(
    store: NoteStore, content: str, search: str, replace: str, expected: str, count: int
) -> None:
    store.write("a.md", content)
    assert store.data("searchReplace", path="a.md", search=search, replace=replace)["replacements"] == count
    assert store.text("a.md") == expected


@requirement("notestore.search-replace")
def test_a_search_of_many_lines_takes_time_linear_in_the_note() -> None:
    """If each line were compared with all lines of the search, this would take hours."""
    content = b"\r\n" * 1_000_000
    assert note_tools.replace_text(content, b"\n" * 100_000 + b"z", b"y") == (content, 0)
    assert note_tools.replace_text(content, b"\n" * 100_000, b"\n") == (b"\r\n" * 10, 10)


@pytest.mark.parametrize(("content", "search"), [(b"a", b"a"), (b"a\r\n", b"a\n")], ids=["text", "line end"])
def test_a_replacement_larger_than_a_note_may_be_is_not_built(content: bytes, search: bytes) -> None:
    with pytest.raises(NoteTooLarge):
        note_tools.replace_text(content * 30, search, b"x" * (1 << 20))


def test_search_replace_keeps_bytes_that_are_not_utf8(store: NoteStore) -> None:
    store.write("a.md", b"\xff one \xfe one")
    assert store.data("searchReplace", path="a.md", search="one", replace="zwei")["replacements"] == 2
    assert (store.stub.root / "a.md").read_bytes() == b"\xff zwei \xfe zwei"


@requirement("notestore.extra-fields-ignored")
@pytest.mark.parametrize("tool", TOOLS)
def test_unknown_fields_are_ignored(store: NoteStore, tool: str) -> None:
    store.write("a.md", NOTE)
    store.data(tool, **TOOLS[tool], vault="main", apiKey=None, nested={"a": [1]})


def test_list_notes_needs_no_body(store: NoteStore) -> None:
    store.write("a.md", NOTE)
    with store.client as client:
        assert client.post("/api/listNotes").json() == {"success": True, "data": {"notes": ["a.md"]}}
