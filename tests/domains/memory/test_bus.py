"""Writing, reading and deleting documents through the memory bus. On both databases."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any
from unittest.mock import AsyncMock

import pytest
from ruamel.yaml.scanner import Scanner

from stentor.core.errors import StoreUnavailable
from stentor.domains.memory import service as memory_service
from stentor_vault.jsontext import JsonObject
from stentor_vault.notes import yaml_parser
from stentor_vault.notes.model import VaultUnavailable
from tests.domains.memory.conftest import AGENTS, Notes
from tests.requirements import requirement


@requirement("memory.write-answers", "memory.read-exact", "memory.frontmatter-fields")
async def test_a_document_comes_back_as_it_was_written(notes: Notes) -> None:
    frontmatter = {
        "hebbian_weights": {AGENTS[0]: 1.5, AGENTS[1]: 0.25},
        "tags": ["a", "b c"],
        "created_at": "2026-11-20T21:45:00Z",
        "own": {"nested": [1, None, True]},
    }
    content = "# Hi\n\nä 日本語 😀\r\nno line end"
    answer = await notes.write("Projects/x.md", content, frontmatter=frontmatter)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["status"], body["sync_pending"]) == ("success", False)
    assert body["estimated_sync_completion"] == body["timestamp"]
    assert body["content_hash"] == hashlib.sha256(content.encode()).hexdigest()
    assert body["latency_ms"] > 0
    assert len(body["write_id"]) == 36
    assert body["timestamp"].endswith("Z")
    read = await notes.read("Projects/x.md")
    assert read.json()["status"] == "success"
    assert read.json()["document"] == {"path": "Projects/x.md", "content": content, "frontmatter": frontmatter}
    assert read.headers["ETag"] == answer.headers["ETag"]
    assert (notes.root / "Projects" / "x.md").read_bytes().endswith(content.encode())


@requirement("memory.frontmatter-fields")
async def test_integers_of_any_length_come_back_and_are_found(notes: Notes) -> None:
    frontmatter = {"id": 1234567890123456789, "huge": -(10**400), "hebbian_weights": {AGENTS[0]: 10**400}}
    answer = await notes.write("a.md", "harbour", frontmatter=frontmatter)
    assert answer.status_code == 200, answer.text
    (notes.root / "b.md").write_text(
        "---\nid: 1234567890123456789\nhebbian_weights: {a: 1" + "0" * 400 + "}\n---\nharbour"
    )
    await notes.until_found("harbour", ["a.md", "b.md"])
    assert (await notes.read("a.md")).json()["document"]["frontmatter"] == frontmatter
    assert (await notes.read("b.md")).json()["document"]["frontmatter"]["id"] == 1234567890123456789
    assert (await notes.write("a.md", "x", frontmatter={"id": 10**4_100})).status_code == 400


async def test_a_block_at_the_head_of_the_content_is_frontmatter(notes: Notes) -> None:
    content = "---\ntags: [x]\n---\nbody\n"
    answer = await notes.write("a.md", content)
    assert answer.json()["content_hash"] == hashlib.sha256(content.encode()).hexdigest()
    document = (await notes.read("a.md")).json()["document"]
    assert (document["content"], document["frontmatter"]) == ("body\n", {"tags": ["x"]})
    assert (notes.root / "a.md").read_text() == content


@requirement("memory.same-write-same-note")
async def test_the_same_write_twice_is_the_same_note(notes: Notes) -> None:
    for content in ("---\ntags: [x]\n---\nbody\n", "\ufeffbody\n", "---\n\nIntro\n\n---\n\nbody\n"):
        first = await notes.write("a.md", content)
        second = await notes.write("a.md", content)
        assert second.headers["ETag"] == first.headers["ETag"]
        assert (notes.root / "a.md").read_text() == content
        await notes.write("a.md", None, "delete")


@requirement("memory.same-write-same-note")
async def test_text_between_two_rules_is_read_and_found_whoever_wrote_it(notes: Notes) -> None:
    content = "---\n\nIntroduction by the harbour.\n\n---\n\nOutro.\n"
    (notes.root / "person.md").write_text(content)
    await notes.until_found("harbour", ["person.md"])
    await notes.write("agent.md", content)
    assert sorted(await notes.found("harbour")) == ["agent.md", "person.md"]
    for path in ("person.md", "agent.md"):
        assert (await notes.read(path)).json()["document"] == {"path": path, "content": content, "frontmatter": {}}
        assert (await notes.write(path, None, "update", frontmatter={"tags": ["x"]})).status_code == 200
        document = (await notes.read(path)).json()["document"]
        assert (document["content"], document["frontmatter"]) == (content, {"tags": ["x"]})


@requirement("memory.nul-is-400")
async def test_a_content_with_nul_is_400_and_not_written(notes: Notes) -> None:
    for operation in ("write", "update"):
        await notes.write("old.md", "old")
        for path in ("new.md", "old.md"):
            if (operation, path) != ("update", "new.md"):
                assert (await notes.write(path, "a\0b", operation)).status_code == 400
    assert [path.name for path in notes.root.iterdir()] == ["old.md"]
    assert await notes.content("old.md") == "old"


async def test_frontmatter_that_could_not_be_read_again_is_400_and_not_written(notes: Notes) -> None:
    deep: Any = 1
    for _ in range(25):
        deep = [deep]
    for frontmatter in ({"a": deep}, {"a": "x" * 70_000}):
        assert (await notes.write("a.md", "x", frontmatter=frontmatter)).status_code == 400
    assert list(notes.root.iterdir()) == []


@requirement("memory.read-exact")
async def test_what_is_not_there_is_not_found_with_200(notes: Notes) -> None:
    answer = await notes.read("none.md")
    assert answer.status_code == 200
    assert answer.json() | {"latency_ms": 0} == {"status": "not_found", "document": None, "latency_ms": 0}


async def test_an_update_changes_what_it_names_and_leaves_every_other_byte(notes: Notes) -> None:
    notes.root.joinpath("a.md").write_bytes(
        b"\xef\xbb\xbf---\r\nkeep: 0123  # mine\r\non: push\r\ntags: [x]\r\n---\r\nbody\r\n"
    )
    assert (await notes.write("a.md", None, "update", frontmatter={"tags": ["x", "z"]})).status_code == 200
    expected = b"\xef\xbb\xbf---\r\nkeep: 0123  # mine\r\non: push\r\ntags:\r\n  - x\r\n  - z\r\n---\r\n"
    assert notes.root.joinpath("a.md").read_bytes() == expected + b"body\r\n"
    assert (await notes.write("a.md", "new", "update")).status_code == 200
    assert notes.root.joinpath("a.md").read_bytes() == expected + b"new"


async def test_a_write_replaces_the_frontmatter_that_it_gives_and_leaves_it_when_it_gives_none(notes: Notes) -> None:
    await notes.write("a.md", "one", frontmatter={"a": 1, "b": 2})
    await notes.write("a.md", "two")
    assert (await notes.read("a.md")).json()["document"]["frontmatter"] == {"a": 1, "b": 2}
    await notes.write("a.md", "two", frontmatter={"b": 3})
    assert (await notes.read("a.md")).json()["document"]["frontmatter"] == {"b": 3}


async def test_an_update_or_deletion_of_nothing_is_404_and_makes_nothing(notes: Notes) -> None:
    for operation in ("update", "delete"):
        assert (await notes.write("none.md", "x", operation)).status_code == 404
    assert list(notes.root.iterdir()) == []


@requirement("memory.write-answers")
async def test_a_deleted_document_is_gone_and_lies_in_the_trash(notes: Notes) -> None:
    await notes.write("a.md", "one")
    answer = await notes.write("a.md", None, "delete")
    assert (answer.status_code, answer.json()["content_hash"]) == (200, hashlib.sha256(b"one").hexdigest())
    assert "ETag" not in answer.headers
    assert (await notes.read("a.md")).json()["status"] == "not_found"
    assert (notes.root / ".trash" / "a.md").read_text() == "one"
    assert await notes.found("one") == []


@requirement("memory.etag-if-match")
async def test_if_match_holds_or_nothing_happens(notes: Notes) -> None:
    first = await notes.write("a.md", "one")
    etag = first.headers["ETag"]
    assert (await notes.write("a.md", "two", headers={"If-Match": etag})).status_code == 200
    for stale in (etag, '"x"', "W/" + etag):
        for operation in ("write", "update", "delete"):
            answer = await notes.write("a.md", "three", operation, headers={"If-Match": stale})
            assert (answer.status_code, answer.json()["error"]["code"]) == (412, "PRECONDITION_FAILED")
    assert await notes.content("a.md") == "two"
    assert (await notes.write("a.md", "four", headers={"If-Match": "*"})).status_code == 200
    assert (await notes.write("new.md", "x", headers={"If-Match": "*"})).status_code == 412


@requirement("memory.etag-if-match")
async def test_if_match_may_be_a_list_of_etags(notes: Notes) -> None:
    etag = (await notes.write("a.md", "one")).headers["ETag"]
    for given in (f'"0000", {etag}', f"{etag},, W/{etag}", f"W/{etag}", etag.strip('"')):
        assert (await notes.write("a.md", "one", headers={"If-Match": given})).status_code == 200
    assert (await notes.write("a.md", "two", headers={"If-Match": '"0000", "1111"'})).status_code == 412
    for wrong in ('"a" "b"', ",", '"'):
        answer = await notes.write("a.md", "two", headers={"If-Match": wrong})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert (await notes.write("new.md", "x", headers={"If-Match": '""'})).status_code == 412
    assert (notes.root / "a.md").read_text() == "one"


@requirement("memory.etag-if-match")
async def test_if_none_match_makes_a_note_and_never_another_of_one(notes: Notes) -> None:
    none = {"If-None-Match": "*"}
    etag = (await notes.write("a.md", "one", headers=none)).headers["ETag"]
    for operation in ("write", "update", "delete"):
        answer = await notes.write("a.md", "two", operation, headers=none)
        assert (answer.status_code, answer.json()["error"]["code"]) == (412, "PRECONDITION_FAILED")
        assert (await notes.write("a.md", "two", operation, headers={"If-None-Match": etag})).status_code == 412
    assert (notes.root / "a.md").read_text() == "one"
    assert (await notes.write("a.md", "two", headers={"If-None-Match": '"0000"'})).status_code == 200
    (notes.root / "a.md").unlink()
    again = await notes.write("a.md", "three", headers=none, conflict_resolution="abort")
    assert again.json()["status"] == "success"


@requirement("memory.conflict-abort")
async def test_abort_answers_the_conflict_and_changes_nothing(notes: Notes) -> None:
    await notes.write("a.md", "one", source_agent=AGENTS[0])
    answer = await notes.write("a.md", "two", source_agent=AGENTS[1], conflict_resolution="abort")
    assert (answer.status_code, answer.json()["status"]) == (200, "conflict")
    assert answer.json()["content_hash"] == hashlib.sha256(b"one").hexdigest()
    assert (notes.root / "a.md").read_text() == "one"
    again = await notes.write("a.md", "three", source_agent=AGENTS[0], conflict_resolution="abort")
    assert again.json()["status"] == "success"


async def test_who_has_read_the_present_state_is_in_no_conflict(notes: Notes) -> None:
    (notes.root / "a.md").write_text("by a person")
    first = await notes.write("a.md", "blind", source_agent=AGENTS[0], conflict_resolution="abort")
    assert first.json()["status"] == "conflict"
    await notes.read("a.md")
    second = await notes.write("a.md", "seen", source_agent=AGENTS[0], conflict_resolution="abort")
    assert second.json()["status"] == "success"
    known = hashlib.sha256(b"seen").hexdigest()
    other = await notes.write("a.md", "told", source_agent=AGENTS[1], conflict_resolution="abort", base_hash=known)
    assert other.json()["status"] == "success"


@requirement("memory.conflict-abort")
async def test_a_note_that_was_removed_is_another_state_for_who_knew_it(notes: Notes) -> None:
    async def write(content: str, **fields: Any) -> str:
        answer = await notes.write("a.md", content, conflict_resolution="abort", **fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["status"])

    base = (await notes.write("a.md", "one", source_agent=AGENTS[0])).json()["content_hash"]
    (notes.root / "a.md").unlink()
    for fields in ({"base_hash": base}, {"base_hash": "0" * 64}, {"source_agent": AGENTS[0]}):
        assert await write("two", **fields) == "conflict"
    assert list(notes.root.iterdir()) == []
    await notes.read("a.md")  # now it is known that there is none
    assert await write("two", source_agent=AGENTS[0]) == "success"
    await notes.write("a.md", None, "delete", source_agent=AGENTS[0])
    assert await write("three", source_agent=AGENTS[0]) == "success"
    (notes.root / "a.md").unlink()
    assert await write("four", source_agent=AGENTS[0]) == "conflict"
    assert await write("five", source_agent=AGENTS[1]) == "success"


@requirement("memory.conflict-merge-or-last-write")
async def test_of_a_removal_and_a_change_a_merge_keeps_the_change(notes: Notes) -> None:
    base = (await notes.write("a.md", "one")).json()["content_hash"]
    (notes.root / "a.md").unlink()
    answer = await notes.write("a.md", "two", conflict_resolution="merge", base_hash=base)
    assert answer.json()["status"] == "success"
    assert (notes.root / "a.md").read_text() == "two"


@requirement("memory.conflict-merge-or-last-write")
async def test_merge_keeps_both_changes(notes: Notes) -> None:
    base = "one\ntwo\nthree\nfour\nfive\n"
    await notes.write("a.md", base, frontmatter={"tags": ["a"]}, source_agent=AGENTS[0])
    text = (notes.root / "a.md").read_text()
    (notes.root / "a.md").write_text(text.replace("five", "FIVE").replace("- a", "- a\n  - human"))
    answer = await notes.write(
        "a.md",
        base.replace("one", "ONE"),
        frontmatter={"tags": ["a", "agent"]},
        source_agent=AGENTS[0],
        conflict_resolution="merge",
    )
    assert (answer.json()["status"], answer.json()["merged"]) == ("success", True)
    read = (await notes.read("a.md")).json()["document"]
    assert read["content"] == "ONE\ntwo\nthree\nfour\nFIVE\n"
    assert read["frontmatter"] == {"tags": ["a", "human", "agent"]}


@requirement("memory.conflict-merge-or-last-write")
async def test_the_base_of_a_merge_may_be_named_by_the_hash_of_its_content(notes: Notes) -> None:
    content = "one\ntwo\nthree\nfour\nfive\n"
    await notes.write("a.md", content, frontmatter={"tags": ["a"]})
    text = (notes.root / "a.md").read_text()
    (notes.root / "a.md").write_text(text.replace("five", "FIVE"))
    base, wanted = hashlib.sha256(content.encode()).hexdigest(), content.replace("one", "ONE")
    answer = await notes.write("a.md", wanted, client="SECOND", conflict_resolution="merge", base_hash=base)
    assert (answer.json()["status"], answer.json()["merged"]) == ("success", True)
    assert (notes.root / "a.md").read_text() == text.replace("five", "FIVE").replace("one", "ONE")


@requirement("memory.conflict-merge-or-last-write")
async def test_where_a_merge_fails_both_versions_are_there(notes: Notes) -> None:
    await notes.write("Notes/a.md", "one\n", source_agent=AGENTS[0])
    (notes.root / "Notes" / "a.md").write_text("human\n")
    answer = await notes.write("Notes/a.md", "agent\n", source_agent=AGENTS[0], conflict_resolution="merge")
    assert answer.json()["status"] == "conflict"
    copy = answer.json()["conflict_copy"]
    assert copy.startswith("Notes/a (Conflicted copy ")
    assert (notes.root / "Notes" / "a.md").read_text() == "human\n"
    assert (notes.root / copy).read_text() == "agent\n"
    assert await notes.found("agent") == [copy]


@requirement("memory.conflict-merge-or-last-write")
async def test_every_conflict_of_the_same_second_has_its_own_copy(notes: Notes) -> None:
    base = (await notes.write("a.md", "one\n")).json()["content_hash"]
    (notes.root / "a.md").write_text("human\n")
    answers = await asyncio.gather(
        *(notes.write("a.md", f"agent {i}\n", base_hash=base, conflict_resolution="merge") for i in range(8))
    )
    assert [(answer.status_code, answer.json()["status"]) for answer in answers] == [(200, "conflict")] * 8
    copies = {(notes.root / answer.json()["conflict_copy"]).read_text() for answer in answers}
    assert copies == {f"agent {i}\n" for i in range(8)}
    assert (notes.root / "a.md").read_text() == "human\n"


@requirement("memory.conflict-merge-or-last-write")
@pytest.mark.parametrize(
    "name",
    ["n" * 240 + ".md", "ä" * 125 + "n.md", "日" * 84, "a." + "x" * 250, "v1.2/plain"],
    ids=["letters", "umlauts", "signs", "a long suffix", "a folder with a dot"],
)
async def test_the_copy_of_a_note_with_a_long_name_has_a_shorter_one(notes: Notes, name: str) -> None:
    base = (await notes.write(name, "one\n")).json()["content_hash"]
    (notes.root / name).write_text("human\n")
    for text in ("agent\n", "another\n"):
        answer = await notes.write(name, text, base_hash=base, conflict_resolution="merge")
        assert (answer.status_code, answer.json()["status"]) == (200, "conflict")
        copy = notes.root / answer.json()["conflict_copy"]
        assert (copy.read_text(), copy.parent) == (text, (notes.root / name).parent)
        assert copy.name.endswith(".md") == name.endswith(".md")


@requirement("memory.conflict-merge-or-last-write")
async def test_last_write_wins_and_the_loser_is_kept_in_the_history(notes: Notes) -> None:
    memory = notes.world.kernel.memory
    assert memory is not None
    await notes.write("a.md", "one", source_agent=AGENTS[0])
    (notes.root / "a.md").write_text("human")
    answer = await notes.write("a.md", "two", source_agent=AGENTS[1])
    assert answer.json()["status"] == "success"
    kept = {version.content_hash: version.origin for version in (await memory.default.history.list_versions("a.md"))[0]}
    hashes = {text: hashlib.sha256(text.encode()).hexdigest() for text in ("one", "human", "two")}
    assert kept == {hashes["one"]: "bus", hashes["human"]: "vault", hashes["two"]: "bus"}


async def test_of_32_clients_that_append_no_line_is_lost(notes: Notes) -> None:
    await notes.write("log.md", "start\n\n")

    async def append(i: int) -> None:
        while True:
            read = await notes.read("log.md")
            content = read.json()["document"]["content"] + f"line {i}\n"
            answer = await notes.write("log.md", content, "update", headers={"If-Match": read.headers["ETag"]})
            if answer.status_code == 200:
                return
            assert answer.status_code == 412

    await asyncio.gather(*(append(i) for i in range(32)))
    content = await notes.content("log.md")
    assert content is not None
    assert sorted(content.split("\n\n")[1].splitlines()) == sorted(f"line {i}" for i in range(32))


@requirement("memory.paths-stay-in-vault")
@pytest.mark.parametrize(
    "path",
    ["../x.md", "/etc/passwd", "a/../../x.md", "a\\b.md", "a\0.md", "a\n.md", ".obsidian/x.md", "", "a//b"],
)
async def test_a_path_out_of_the_vault_is_400(notes: Notes, path: str) -> None:
    for operation in ("write", "update", "delete"):
        answer = await notes.write(path, "x", operation)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert (await notes.read(path)).status_code == 400
    assert list(notes.root.iterdir()) == []


@requirement("memory.names-of-notes")
async def test_a_note_with_a_name_that_windows_cannot_have_is_a_note_like_any_other(notes: Notes) -> None:
    path, folder = "Q: folder?/What is DNS?.md", notes.root / "Q: folder?"
    folder.mkdir()
    (notes.root / path).write_text("A system of names. See [[Who?]].\n")
    await notes.until_found("names", [path])
    assert await notes.content(path) == "A system of names. See [[Who?]].\n"
    assert (await notes.write(path, "A tree of names.\n", "update")).status_code == 200
    assert (await notes.write(path, None, "delete")).status_code == 200
    assert (await notes.read(path)).json()["status"] == "not_found"
    assert (await notes.write(path, "Back again.\n")).status_code == 200  # the name that it had
    assert (folder / "What is DNS?.md").read_text() == "Back again.\n"
    assert (await notes.write("Q: folder?/new.md")).status_code == 200  # the folder is there


@requirement("memory.names-of-notes")
@pytest.mark.parametrize("path", ["What?.md", "Q: new/a.md", "CON.md", "a./b.md", "b /c.md", "a\u202eb.md"])
async def test_a_new_note_with_a_name_that_windows_cannot_have_is_400(notes: Notes, path: str) -> None:
    answer = await notes.write(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert list(notes.root.iterdir()) == []
    assert (await notes.write(path, None, "delete")).status_code == 404


@requirement("memory.names-of-notes")
async def test_a_conflicted_copy_keeps_a_name_that_windows_cannot_have(notes: Notes) -> None:
    (notes.root / "Why?.md").write_text("one\n")
    await notes.read("Why?.md")
    (notes.root / "Why?.md").write_text("two\n")
    answer = (await notes.write("Why?.md", "three\n", conflict_resolution="merge")).json()
    copies = [path.name for path in notes.root.glob("Why? (Conflicted copy *).md")]
    assert (answer["status"], len(copies)) == ("conflict", 1), answer


@requirement("memory.paths-stay-in-vault")
async def test_a_link_out_of_the_vault_leads_nowhere(notes: Notes) -> None:
    outside = notes.root.parent / "outside"
    outside.mkdir()
    (notes.root / "link").symlink_to(outside)
    for operation, status in {"write": 409, "update": 404, "delete": 404}.items():
        assert (await notes.write("link/x.md", "x", operation)).status_code == status
    assert list(outside.iterdir()) == []
    (outside / "x.md").write_text("secret")
    assert (await notes.read("link/x.md")).json()["status"] == "not_found"


BAD: list[dict[str, Any]] = [
    {"operation": "append", "document": {"path": "a.md", "content": ""}},
    {"operation": "write", "document": {"path": "a.md"}},
    {"operation": "write", "document": {"path": "a.md", "content": 5}},
    {"operation": "write", "document": {"path": "a.md", "content": "x", "frontmatter": []}},
    {"operation": "write", "document": {"path": "a.md", "content": "x", "more": 1}},
    {"operation": "write", "document": {"content": "x"}},
    {"operation": "write"},
    {"document": {"path": "a.md", "content": "x"}},
    {"operation": "write", "document": {"path": "a.md", "content": "x"}, "metadata": {"priority": "urgent"}},
    {"operation": "write", "document": {"path": "a.md", "content": "x"}, "metadata": {"conflict_resolution": "mine"}},
    {"operation": "write", "document": {"path": "a.md", "content": "x"}, "metadata": {"source_agent": "me"}},
]


@requirement("memory.write-values")
@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
async def test_other_values_are_400_and_write_nothing(notes: Notes, body: dict[str, Any]) -> None:
    answer = await notes.post("write", **body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert list(notes.root.iterdir()) == []


async def test_frontmatter_that_cannot_be_read_is_told_and_never_rewritten(notes: Notes) -> None:
    raw = "---\na: &x [1]\nb: *x\n---\nbody word\n"
    (notes.root / "bad.md").write_text(raw)
    await notes.until_found("word", ["bad.md"])
    read = (await notes.read("bad.md")).json()["document"]
    assert (read["content"], read["frontmatter"]) == ("body word\n", {})
    assert "anchors" in read["frontmatter_problem"]
    assert (await notes.write("bad.md", None, "update", frontmatter={"c": 1})).status_code == 400
    assert (await notes.write("bad.md", "other\n", "update")).status_code == 200
    assert (notes.root / "bad.md").read_text() == raw.replace("body word", "other")


@requirement("memory.frontmatter-bounded")
@pytest.mark.parametrize("block", ["tags: [" + "b, " * 20_000 + "b]", "tags:\n" + "- b\n" * 15_000])
async def test_frontmatter_of_too_many_values_is_told_and_the_note_is_read_and_found(notes: Notes, block: str) -> None:
    (notes.root / "wide.md").write_text(f"---\n{block}\n---\nbody word\n")
    await notes.until_found("word", ["wide.md"])
    read = (await notes.read("wide.md")).json()["document"]
    assert (read["content"], read["frontmatter"]) == ("body word\n", {})
    assert "more than 2,000 keys and values" in read["frontmatter_problem"]


@requirement("memory.frontmatter-bounded")
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a: ", "}")])
def test_frontmatter_is_read_up_to_twenty_levels(opening: str, closing: str) -> None:
    def load(levels: int) -> JsonObject:
        return yaml_parser.load_mapping(f"a: {opening * levels}1{closing * levels}\n")

    assert list(load(yaml_parser.MAX_DEPTH - 1)) == ["a"]
    with pytest.raises(yaml_parser.InvalidYaml, match="deeper than 20 levels"):
        load(yaml_parser.MAX_DEPTH)


@requirement("memory.frontmatter-bounded")
@pytest.mark.parametrize("bracket", ["[", "{", "[a, "])
def test_no_more_brackets_are_read_than_may_be_open(bracket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that ruamel.yaml takes to look ahead grows with the square of their number."""
    opened = []
    original = Scanner.fetch_flow_collection_start

    def fetch(self: Scanner, *arguments: Any, **named: Any) -> None:
        opened.append(1)
        original(self, *arguments, **named)

    monkeypatch.setattr(Scanner, "fetch_flow_collection_start", fetch)
    with pytest.raises(yaml_parser.InvalidYaml, match="deeper than 20 levels"):
        yaml_parser.load_mapping("a: " + bracket * 10_000)
    assert len(opened) <= yaml_parser.MAX_DEPTH + 1


@requirement("memory.frontmatter-bounded")
async def test_frontmatter_of_too_many_values_is_400_and_not_written(notes: Notes) -> None:
    answer = await notes.write("wide.md", "body", frontmatter={"tags": ["b"] * 3_000})
    assert answer.status_code == 400
    assert not (notes.root / "wide.md").exists()


async def test_a_mark_of_byte_order_is_the_files_and_the_hash_is_of_what_is_read(notes: Notes) -> None:
    written = (await notes.write("bom.md", "\ufefftext")).json()
    assert (notes.root / "bom.md").read_bytes() == b"\xef\xbb\xbftext"
    content = (await notes.read("bom.md")).json()["document"]["content"]
    assert content == "text"
    assert written["content_hash"] == hashlib.sha256(content.encode()).hexdigest()


@pytest.mark.parametrize("content", ["---\na: 1\n---\nbody", "\ufeff---\na: 1\n---\nbody"])
async def test_the_hash_of_a_write_with_a_block_of_keys_names_the_state_that_was_written(
    notes: Notes, content: str
) -> None:
    await notes.write("a.md", "old", frontmatter={"b": 2})
    written = (await notes.write("a.md", content)).json()
    again = await notes.write("a.md", "next", base_hash=written["content_hash"], conflict_resolution="abort")
    assert again.json()["status"] == "success"


async def test_a_file_that_is_no_text_is_no_document(notes: Notes) -> None:
    (notes.root / "image.png").write_bytes(b"\x89PNG\0\xff")
    answer = await notes.read("image.png")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert "not UTF-8" in answer.json()["error"]["message"]
    assert (await notes.write("image.png", "x", "update", frontmatter={"a": 1})).status_code == 400
    assert (notes.root / "image.png").read_bytes() == b"\x89PNG\0\xff"


@requirement("memory.needs-admin")
async def test_only_an_admin_of_the_vaults_tenant_may(notes: Notes) -> None:
    for client in ("READER", "WRITER", "BOB", "OTHER"):
        answers = [
            await notes.write("a.md", client=client),
            await notes.read("a.md", client=client),
            await notes.post("search/keyword", client=client, terms=["a"]),
            await notes.world.clients[client].get("/api/v1/memory/health"),
        ]
        assert [answer.status_code for answer in answers] == [403] * 4
    assert list(notes.root.iterdir()) == []


@requirement("memory.writes-in-run-log")
async def test_uses_of_the_memory_are_in_the_run_log_under_their_task(notes: Notes) -> None:
    world = notes.world
    await world.register()
    task_id = await world.submit()
    headers = {"X-Task-Id": task_id}
    await notes.write("a.md", "one", headers=headers, source_agent=AGENTS[0])
    await notes.read("a.md", **headers)
    await notes.post("search/keyword", terms=["one"], headers=headers)
    events = await world.events(task_id)
    used = [event for event in events if event["component"] == "memory"]
    assert [event["event_type"] for event in used] == ["memory_written", "memory_read", "memory_read"]
    assert {event["parent_provenance_id"] for event in used} == {events[0]["provenance_id"]}
    assert used[0]["metadata"]["path"] == "a.md"
    assert used[0]["metadata"]["status"] == "success"


async def test_a_task_that_is_not_there_is_404_and_nothing_is_done(notes: Notes) -> None:
    headers = {"X-Task-Id": "none"}
    assert (await notes.write("a.md", "one", headers=headers)).status_code == 404
    assert list(notes.root.iterdir()) == []
    await notes.write("a.md", "one")
    assert (await notes.read("a.md", **headers)).status_code == 404


async def test_without_the_run_log_nothing_is_written_or_read(notes: Notes) -> None:
    await notes.write("a.md", "one")
    notes.world.runlog.broken = True
    answers = [
        await notes.write("a.md", "two"),
        await notes.write("b.md", "new"),
        await notes.write("a.md", None, "delete"),
        await notes.read("a.md"),
        await notes.post("search/keyword", terms=["one"]),
    ]
    assert [answer.status_code for answer in answers] == [503] * 5
    notes.world.runlog.broken = False
    assert [path.name for path in notes.root.iterdir()] == ["a.md"]
    assert await notes.content("a.md") == "one"


async def test_a_write_that_fails_and_cannot_be_taken_back_says_that_it_may_follow(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: Any) -> None:
        notes.world.runlog.broken = True
        raise VaultUnavailable("The disk is full.")

    with monkeypatch.context() as full:
        full.setattr(notes.world.memory.default.vault, "write", fail)
        answer = await notes.write("a.md", "one")
    notes.world.runlog.broken = False
    assert answer.status_code == 503
    assert "may still be made" in answer.json()["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    await notes.world.memory.default.service.journal.recover()
    assert await notes.content("a.md") == "one"


async def test_a_write_where_no_note_can_be_is_a_conflict(notes: Notes) -> None:
    (notes.root / "plans.md").mkdir()
    (notes.root / "a.md").write_text("x")
    for path in ("plans.md", "a.md/b.md"):
        answer = await notes.write(path, "y")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CONFLICT"), answer.text
        assert (await notes.write(path, None, "delete")).status_code == 404
        assert (await notes.read(path)).json()["status"] == "not_found"


async def test_an_outage_of_the_index_is_not_logged_for_each_note(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = notes.world.memory.default.service
    lines: list[str] = []
    monkeypatch.setattr(memory_service.log, "exception", lambda text, *values: lines.append(text % values))
    for error in (StoreUnavailable("The database cannot be used: database or disk is full."), ValueError("a flaw")):
        monkeypatch.setattr(memory._indexer, "index_notes", AsyncMock(side_effect=error))
        assert (await notes.write(f"{type(error).__name__}.md")).status_code == 200
    assert lines == ["memory: index update failed path='ValueError.md'"]
