"""Links between notes: targets, backlinks and unresolved links."""

from __future__ import annotations

import sys
import threading

import pytest

from stentor_vault.server.search.links import LinkIndex, extract_link_targets
from tests.surfaces.vault.conftest import Vault

JSON = {"Accept": "application/vnd.olrapi.note+json"}


def read_links(vault: Vault, path: str) -> dict[str, list[str]]:
    note = vault.http.get(f"/vault/{path}", headers=JSON).json()
    return {name: note[name] for name in ("links", "backlinks", "unresolvedLinks")}


def test_extraction_finds_wikilinks_embeds_and_markdown_links_outside_code() -> None:
    text = (
        "---\nup: '[[Parent]]'\n---\n[[A]] and [[B|alias]] and [[C#Heading]] and [[D#^block|x]] and ![[image.png]]\n"
        "[e](E.md) and [f](<F f.md>) and [g](sub/G%20g.md#part) and [h](h.md 'title') and [[A]] again\n"
        "[web](https://example.org/x.md) [mail](mailto:x@example.org) [here](#part) [[#here]] [[ ]]\n"
        "```[[code]]``` first\n`[[code]]` ``[[more]]``\n"
        "\n```\n[[fenced]]\n```\n~~~\n[[fenced]]\n~~~\n| [[T\\|table]] |\n"
    )
    wiki = ["Parent", "A", "B", "C", "D", "image.png", "T"]
    assert extract_link_targets(text) == [*wiki, "E.md", "F f.md", "sub/G g.md", "h.md"]


@pytest.mark.parametrize(
    ("name", "expected_path"),
    [
        ("note", "note.md"),
        ("NOTE", "note.md"),
        ("note.md", "note.md"),
        ("deep", "a/deep.md"),
        ("b/deep", "a/b/deep.md"),
        ("a/b/deep.md", "a/b/deep.md"),
        ("/a/deep", "a/deep.md"),
        ("/deep", None),
        ("eep", None),
        ("image.png", "files/image.png"),
        ("image", None),
        ("v1.2", "v1.2.md"),
        ("../note", None),
        ("none", None),
    ],
)
def test_link_resolves_to_the_file_with_the_shortest_path(name: str, expected_path: str | None) -> None:
    links = LinkIndex()
    for path in ("note.md", "z/note.md", "a/deep.md", "a/b/deep.md", "files/image.png", "v1.2.md"):
        links.update(path, [])
    assert links.resolve(name, "top.md") == expected_path


def test_link_prefers_a_file_in_the_folder_of_its_note() -> None:
    links = LinkIndex()
    for path in ("x/note.md", "a/b/note.md", "a/b/c/other.md"):
        links.update(path, [])
    assert links.resolve("note", "a/b/from.md") == "a/b/note.md"
    assert links.resolve("note", "from.md") == "x/note.md"
    assert links.resolve("./note", "a/b/from.md") == "a/b/note.md"
    assert links.resolve("../note", "a/b/c/from.md") == "a/b/note.md"
    assert links.resolve("../../../note", "a/b/from.md") is None


def test_links_can_be_read_while_another_thread_updates_them() -> None:
    links = LinkIndex()
    for i in range(300):
        links.update(f"{i}.md", ["hub"])
    links.update("hub.md", [])
    finished = threading.Event()

    def change() -> None:
        for i in range(2000):
            links.remove(f"{i % 300}.md")
            links.update(f"{i % 300}.md", ["hub"])
        finished.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    changes = threading.Thread(target=change)
    changes.start()
    try:
        while not finished.is_set():
            links.get_links("hub.md")  # must not raise
    finally:
        changes.join()
        sys.setswitchinterval(interval)
    assert len(links.get_links("hub.md").backlinks) == 300


def test_removing_a_file_empties_the_index() -> None:
    links = LinkIndex()
    links.update("a.md", ["b", "folder/b", "c"])
    links.remove("a.md")
    assert not any(vars(links).values())


@pytest.mark.requirement("vault.links")
def test_note_json_contains_links_backlinks_and_unresolved_links(indexed_vault: Vault) -> None:
    vault = indexed_vault
    vault.put("a.md", "[[b]] [[sub/c|C]] [[nobody]] ![[pic.png]] [[a]]")
    vault.put("b.md", "[to a](a.md)")
    vault.put("sub/c.md", "[[a#part]]")
    vault.put("pic.png", b"\x89PNG\xff")
    assert read_links(vault, "a.md") == {
        "links": ["b.md", "sub/c.md", "pic.png", "a.md"],
        "backlinks": ["a.md", "b.md", "sub/c.md"],
        "unresolvedLinks": ["nobody"],
    }
    assert read_links(vault, "b.md")["backlinks"] == ["a.md"]


def test_links_are_updated_after_writes_moves_and_deletes(indexed_vault: Vault) -> None:
    vault = indexed_vault
    vault.put("a.md", "[[b]]")
    assert read_links(vault, "a.md")["unresolvedLinks"] == ["b"]
    vault.put("b.md", "x")
    assert read_links(vault, "a.md")["links"] == ["b.md"]
    vault.http.request("MOVE", "/vault/b.md", headers={"Destination": "deep/b.md"})
    assert read_links(vault, "a.md")["links"] == ["deep/b.md"]
    vault.http.request("MOVE", "/vault/deep/b.md", headers={"Destination": "deep/c.md"})
    assert read_links(vault, "a.md")["unresolvedLinks"] == ["b"]
    vault.put("a.md", "[[c]]")
    assert read_links(vault, "deep/c.md")["backlinks"] == ["a.md"]
    vault.http.delete("/vault/a.md")
    assert read_links(vault, "deep/c.md")["backlinks"] == []


def test_etag_of_note_json_changes_with_its_backlinks(indexed_vault: Vault) -> None:
    vault = indexed_vault
    vault.put("a.md", "x")
    first_etag = vault.http.get("/vault/a.md", headers=JSON).headers["etag"]
    assert first_etag.startswith('W/"')
    vault.put("b.md", "[[a]]")
    response = vault.http.get("/vault/a.md", headers={**JSON, "If-None-Match": first_etag})
    assert (response.status_code, response.json()["backlinks"]) == (200, ["b.md"])


@pytest.mark.parametrize("fragment", ["```a\n", "`", "[[", "](", "[[a|", "~~~\n", "![[x](", "](<", "#"])
def test_link_extraction_takes_linear_time(fragment: str) -> None:
    # With quadratic time the call would not finish.
    assert len(extract_link_targets(fragment * 200_000)) < 10
