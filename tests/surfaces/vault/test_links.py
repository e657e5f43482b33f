"""Links between notes: what they lead to, what leads here, and what leads nowhere."""

from __future__ import annotations

import sys
import threading

import pytest

from stentor_vault.server.links import LinkIndex, extract_link_targets
from tests.surfaces.vault.conftest import Vault

JSON = {"Accept": "application/vnd.olrapi.note+json"}


def linked(vault: Vault, path: str) -> dict[str, list[str]]:
    note = vault.http.get(f"/vault/{path}", headers=JSON).json()
    return {name: note[name] for name in ("links", "backlinks", "unresolvedLinks")}


def test_wikilinks_embeds_and_markdown_links_are_links_and_code_and_the_web_are_not() -> None:
    text = (
        "---\nup: '[[Parent]]'\n---\n[[A]] and [[B|alias]] and [[C#Heading]] and [[D#^block|x]] and ![[image.png]]\n"
        "[e](E.md) and [f](<F f.md>) and [g](sub/G%20g.md#part) and [h](h.md 'title') and [[A]] again\n"
        "[web](https://example.org/x.md) [mail](mailto:x@example.org) [here](#part) [[#here]] [[ ]]\n"
        "`[[code]]` ``[[more]]``\n\n```\n[[fenced]]\n```\n~~~\n[[fenced]]\n~~~\n| [[T\\|table]] |\n"
    )
    wiki = ["Parent", "A", "B", "C", "D", "image.png", "T"]
    assert extract_link_targets(text) == [*wiki, "E.md", "F f.md", "sub/G g.md", "h.md"]


@pytest.mark.parametrize(
    ("name", "found"),
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
def test_a_link_leads_to_the_file_with_the_shortest_path(name: str, found: str | None) -> None:
    links = LinkIndex()
    for path in ("note.md", "z/note.md", "a/deep.md", "a/b/deep.md", "files/image.png", "v1.2.md"):
        links.update(path, [])
    assert links.resolve(name, "top.md") == found


def test_a_link_leads_to_the_file_beside_the_note_first() -> None:
    links = LinkIndex()
    for path in ("x/note.md", "a/b/note.md", "a/b/c/other.md"):
        links.update(path, [])
    assert links.resolve("note", "a/b/from.md") == "a/b/note.md"
    assert links.resolve("note", "from.md") == "x/note.md"
    assert links.resolve("./note", "a/b/from.md") == "a/b/note.md"
    assert links.resolve("../note", "a/b/c/from.md") == "a/b/note.md"
    assert links.resolve("../../../note", "a/b/from.md") is None


def test_links_are_read_while_another_thread_changes_them() -> None:
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


def test_removed_files_leave_nothing_in_the_index() -> None:
    links = LinkIndex()
    links.update("a.md", ["b", "folder/b", "c"])
    links.remove("a.md")
    assert not any(vars(links).values())


@pytest.mark.requirement("vault.links")
def test_a_note_tells_its_links_and_who_links_to_it(forgotten: Vault) -> None:
    vault = forgotten
    vault.put("a.md", "[[b]] [[sub/c|C]] [[nobody]] ![[pic.png]] [[a]]")
    vault.put("b.md", "[to a](a.md)")
    vault.put("sub/c.md", "[[a#part]]")
    vault.put("pic.png", b"\x89PNG\xff")
    assert linked(vault, "a.md") == {
        "links": ["b.md", "sub/c.md", "pic.png", "a.md"],
        "backlinks": ["a.md", "b.md", "sub/c.md"],
        "unresolvedLinks": ["nobody"],
    }
    assert linked(vault, "b.md")["backlinks"] == ["a.md"]


def test_links_follow_what_is_written_moved_and_deleted(forgotten: Vault) -> None:
    vault = forgotten
    vault.put("a.md", "[[b]]")
    assert linked(vault, "a.md")["unresolvedLinks"] == ["b"]
    vault.put("b.md", "x")
    assert linked(vault, "a.md")["links"] == ["b.md"]
    vault.http.request("MOVE", "/vault/b.md", headers={"Destination": "deep/b.md"})
    assert linked(vault, "a.md")["links"] == ["deep/b.md"]
    vault.http.request("MOVE", "/vault/deep/b.md", headers={"Destination": "deep/c.md"})
    assert linked(vault, "a.md")["unresolvedLinks"] == ["b"]
    vault.put("a.md", "[[c]]")
    assert linked(vault, "deep/c.md")["backlinks"] == ["a.md"]
    vault.http.delete("/vault/a.md")
    assert linked(vault, "deep/c.md")["backlinks"] == []


def test_the_json_of_a_note_has_a_tag_of_its_own_as_others_change_it(forgotten: Vault) -> None:
    vault = forgotten
    vault.put("a.md", "x")
    first = vault.http.get("/vault/a.md", headers=JSON).headers["etag"]
    assert first.startswith('W/"')
    vault.put("b.md", "[[a]]")
    answer = vault.http.get("/vault/a.md", headers={**JSON, "If-None-Match": first})
    assert (answer.status_code, answer.json()["backlinks"]) == (200, ["b.md"])


@pytest.mark.parametrize("sign", ["```a\n", "`", "[[", "](", "[[a|", "~~~\n", "![[x](", "](<", "#"])
def test_no_text_keeps_the_search_for_links_busy(sign: str) -> None:
    assert (
        len(extract_link_targets(sign * 200_000)) < 10
    )  # what grows with the square of the length would not come to an end
