"""Invalidating notes, claims and sources over the API, and restoring them. On both databases."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from stentor.core.db import Sql
from stentor.core.errors import StoreUnavailable
from stentor.domains.memory.validity import store
from stentor_vault.notes import frontmatter
from tests.domains.memory.conftest import AGENTS, Notes
from tests.requirements import requirement

URL = "https://example.com/prices#2026"
EVENTS = Sql("select event_type, metadata from events where event_type in ('memory_invalidated', 'memory_restored')")


async def invalidate(notes: Notes, reason: str = "it was wrong", **target: Any) -> dict[str, Any]:
    answer = await notes.post("invalidate", reason=reason, **target)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def restore(notes: Notes, **target: Any) -> dict[str, Any]:
    answer = await notes.post("restore", **target)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def paths(listed: list[dict[str, Any]]) -> list[str]:
    return [note["path"] for note in listed]


@requirement("memory.invalidate-note")
async def test_a_note_is_invalidated_in_its_file_and_restored_to_the_byte(notes: Notes) -> None:
    text = "---\n# who asked\ntags: [a]  # kept\n---\n# Plan\n\nzebra\n"
    (notes.root / "plan.md").write_text(text)
    await notes.write("b.md", "zebra", frontmatter={"derived_from": ["[[plan]]"]})
    await notes.until_found("zebra", ["b.md", "plan.md"])
    left = await invalidate(notes, note="plan.md")
    assert (paths(left["left"]), left["total"]) == (["b.md", "plan.md"], 2)
    assert left["left"][0]["chain"] == [{"path": "b.md", "derived_from": "[[plan]]"}]
    assert await notes.found("zebra") == []
    values = frontmatter.read((notes.root / "plan.md").read_text())
    assert (values["invalid"], values["invalid_by"], values["tags"]) == ("it was wrong", "admin", ["a"])
    read = (await notes.read("b.md")).json()
    assert read["invalid"]["cause"] | {"at": None} == {
        "kind": "note",
        "target": "plan.md",
        "reason": "it was wrong",
        "by": "admin",
        "at": None,
    }
    back = await restore(notes, note="plan.md", reason="it was right")
    assert paths(back["returned"]) == ["b.md", "plan.md"]
    assert (notes.root / "plan.md").read_text() == text
    assert sorted(await notes.found("zebra")) == ["b.md", "plan.md"]
    assert "invalid" not in (await notes.read("b.md")).json()


@requirement("memory.invalidate-source")
async def test_a_source_takes_all_notes_that_name_it_out_until_it_is_restored(notes: Notes) -> None:
    await notes.write("a.md", "zebra", frontmatter={"derived_from": [URL, "[[other]]"]})
    await notes.write("b.md", "zebra", frontmatter={"derived_from": "[[a]]"})
    await notes.write("c.md", "zebra", frontmatter={"derived_from": f"[prices]({URL})"})
    await notes.write("other.md", "zebra", frontmatter={"task_id": AGENTS[0]})
    assert paths((await invalidate(notes, source=f" {URL} "))["left"]) == ["a.md", "b.md", "c.md"]
    assert await notes.found("zebra") == ["other.md"]
    assert paths((await invalidate(notes, source=f"task:{AGENTS[0].upper()}"))["left"]) == ["other.md"]
    again = await notes.post("invalidate", source=URL, reason="again")
    assert again.status_code == 409
    # What is derived from two sources needs both.
    assert paths((await restore(notes, source=URL))["returned"]) == ["c.md"]
    assert paths((await restore(notes, source=f"task:{AGENTS[0]}"))["returned"]) == ["a.md", "b.md", "other.md"]
    assert (await notes.post("restore", source=URL)).status_code == 409
    await notes.write("late.md", "zebra", frontmatter={"derived_from": "Interview with Bob"})
    assert paths((await invalidate(notes, source="Interview with  Bob"))["left"]) == ["late.md"]


@requirement("memory.invalidate-claim")
async def test_a_claim_is_invalidated_and_restored(notes: Notes) -> None:
    text = "# Costs\n\nzebra\n\n## Offer: 2026\n\ngiraffe ^b1\n"
    await notes.write("n.md", text, frontmatter={"tags": ["x"]})
    await notes.write("d.md", "okapi", frontmatter={"derived_from": ["[[n#Offer 2026]]"]})
    assert paths((await invalidate(notes, claim="n.md#Offer 2026"))["left"]) == ["d.md"]
    assert (await notes.found("giraffe"), await notes.found("zebra")) == ([], ["n.md"])
    again = frontmatter.read((notes.root / "n.md").read_text())["invalid_claims"]
    assert [entry.split(" | ")[:3] for entry in again] == [["#Offer 2026", "it was wrong", "admin"]]
    assert paths((await invalidate(notes, claim="n.md^b1"))["left"]) == []
    assert paths((await restore(notes, claim="n.md#offer 2026"))["returned"]) == ["d.md"]
    assert await notes.found("giraffe") == []
    await restore(notes, claim="n.md^b1")
    assert await notes.found("giraffe") == ["n.md"]
    assert (notes.root / "n.md").read_text() == f"---\ntags:\n  - x\n---\n{text}"


@requirement("memory.invalidate-note")
@pytest.mark.parametrize("text", ["zebra\n", "\ufeffzebra\r\nmore", "---\n# kept\n---\nzebra\n", "---\nzebra\n"])
async def test_a_restored_note_has_the_bytes_that_it_had_before_its_mark(notes: Notes, text: str) -> None:
    (notes.root / "plain.md").write_bytes(text.encode())
    await notes.until_found("zebra", ["plain.md"])
    await invalidate(notes, note="plain.md")
    assert (notes.root / "plain.md").read_bytes() != text.encode()
    assert paths((await restore(notes, note="plain.md"))["returned"]) == ["plain.md"]
    assert (notes.root / "plain.md").read_bytes() == text.encode()


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ({"note": "none.md"}, 404),
        ({"claim": "n.md#None"}, 404),
        ({"claim": "n.md"}, 400),
        ({"claim": "#x"}, 400),
        ({"note": "../x.md"}, 400),
        ({"note": "n.md", "source": "x"}, 400),
        ({}, 400),
        ({"source": " "}, 400),
        ({"note": "n.md", "reason": "no"}, 400),
        ({"note": "n.md", "reason": "a\nb"}, 400),
        ({"note": "broken.md"}, 400),
        ({"note": "n.md", "vault": "none"}, 400),
    ],
)
async def test_what_cannot_be_marked_is_refused(notes: Notes, target: dict[str, Any], status: int) -> None:
    await notes.write("n.md")
    (notes.root / "broken.md").write_text("---\na: [\n---\n")
    body = {"reason": "wrong", **target}
    answer = await notes.world.admin.post("/api/v1/memory/invalidate", json=body)
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize("target", [{"note": "n.md"}, {"claim": "n.md#x"}, {"source": "x"}])
async def test_what_is_not_marked_cannot_be_restored(notes: Notes, target: dict[str, Any]) -> None:
    await notes.write("n.md", "# x")
    assert (await notes.post("restore", **target)).status_code == 409


@requirement("memory.invalid-list")
async def test_all_that_is_invalid_is_listed_in_pages(notes: Notes) -> None:
    for n in range(3):
        await notes.write(f"{n}.md", frontmatter={"derived_from": URL})
    await invalidate(notes, source=URL)
    http = notes.world.admin
    first = (await http.get("/api/v1/memory/invalid", params={"limit": 2})).json()
    assert (paths(first["notes"]), first["total"]) == (["0.md", "1.md"], 3)
    assert [(one["source"], one["reason"], one["by"]) for one in first["sources"]] == [(URL, "it was wrong", "admin")]
    second = (await http.get("/api/v1/memory/invalid", params={"cursor": first["next_cursor"]})).json()
    assert (paths(second["notes"]), second["next_cursor"]) == (["2.md"], None)


@requirement("memory.invalid-list")
async def test_an_invalid_passage_is_listed_also_if_nothing_was_derived_from_it(notes: Notes) -> None:
    await notes.write("n.md", "# Costs\n\n## Offer\n\nzebra\n")
    await invalidate(notes, claim="n.md#Costs")
    listed = (await notes.world.admin.get("/api/v1/memory/invalid")).json()
    assert [(one["kind"], one["target"], one["reason"], one["by"]) for one in listed["claims"]] == [
        ("claim", "n.md#Costs", "it was wrong", "admin")
    ]
    assert (listed["notes"], listed["total"]) == ([], 0)
    await restore(notes, claim="n.md#Costs")
    assert (await notes.world.admin.get("/api/v1/memory/invalid")).json()["claims"] == []


@requirement("memory.invalid-deleted")
async def test_the_answer_to_a_deletion_lists_the_notes_that_it_brings_back(notes: Notes) -> None:
    await notes.write("offer.md", "zebra", frontmatter={"invalid": "withdrawn"})
    await notes.write("summary.md", "zebra", frontmatter={"derived_from": "[[offer]]"})
    await notes.write("report.md", "zebra", frontmatter={"derived_from": "[[summary]]"})
    await notes.write("other.md", "giraffe")
    assert "returned" not in (await notes.write("other.md", None, "delete")).json()
    assert await notes.found("zebra") == []
    assert (await notes.write("offer.md", None, "delete")).json()["returned"] == ["report.md", "summary.md"]
    assert sorted(await notes.found("zebra")) == ["report.md", "summary.md"]


@requirement("memory.invalidation-events")
async def test_who_and_why_are_in_the_run_log_also_for_a_mark_that_a_write_sets(notes: Notes) -> None:
    await notes.write("n.md", "# x", frontmatter={"invalid": "by hand"})
    await restore(notes, note="n.md", reason="checked")
    await invalidate(notes, claim="n.md#x")
    await invalidate(notes, source=URL)
    audit = (await notes.world.admin.get("/api/v1/audit", params={"category": "changes"})).json()["events"]
    found = [
        (event["event_type"], *(event["metadata"][name] for name in ("kind", "target", "reason", "by")))
        for event in reversed(audit)
        if event["event_type"].startswith("memory_")
    ]
    assert found == [
        ("memory_invalidated", "note", "n.md", "by hand", "admin"),
        ("memory_restored", "note", "n.md", "checked", "admin"),
        ("memory_invalidated", "claim", "n.md#x", "it was wrong", "admin"),
        ("memory_invalidated", "source", URL, "it was wrong", "admin"),
    ]


@requirement("memory.invalidation-events")
async def test_a_mark_without_its_event_is_not_set(notes: Notes) -> None:
    await notes.write("n.md", "zebra", frontmatter={"derived_from": URL})
    notes.world.runlog.broken = True
    assert (await notes.post("invalidate", source=URL, reason="wrong")).status_code == 503
    assert (await notes.post("invalidate", note="n.md", reason="wrong")).status_code == 503
    notes.world.runlog.broken = False
    assert await notes.found("zebra") == ["n.md"]
    assert "invalid" not in (notes.root / "n.md").read_text()


@requirement("memory.agents-own-marks")
async def test_an_agent_takes_out_its_note_with_the_answers_that_cite_it(notes: Notes) -> None:
    await notes.write("own.md", "zebra", client="BOSS")
    await notes.write("Tasks/Inbox/q (answer).md", "zebra", frontmatter={"derived_from": "[[own]]"})
    assert (await notes.post("invalidate", client="BOSS", note="own.md", reason="wrong")).status_code == 200
    assert await notes.found("zebra") == []


@requirement("memory.agents-own-marks")
async def test_an_agent_takes_nothing_out_but_its_own_and_removes_no_mark_of_others(notes: Notes) -> None:
    await notes.write("n.md", "zebra")
    await notes.write("d.md", "zebra", frontmatter={"derived_from": "[[n]]"})
    await notes.write("alone.md", "zebra", client="BOSS")
    refused = await notes.post("invalidate", client="BOSS", note="n.md", reason="wrong")
    assert (refused.status_code, "1 note," in refused.text) == (403, True)
    assert (await notes.write("n.md", "zebra", client="BOSS", frontmatter={"invalid": True})).status_code == 403
    # A new note that others would then name is refused too.
    await notes.write("e.md", "zebra", frontmatter={"derived_from": "[[new]]"})
    assert (await notes.write("new.md", "x", client="BOSS", frontmatter={"invalid": True})).status_code == 403
    assert (await notes.post("invalidate", client="BOSS", source=URL, reason="wrong")).status_code == 403
    assert sorted(await notes.found("zebra")) == ["alone.md", "d.md", "e.md", "n.md"]

    own = await notes.post("invalidate", client="BOSS", note="alone.md", reason="wrong")
    assert own.json()["left"][0]["cause"]["by"] == "agent:boss"
    assert (await notes.post("restore", client="BOSS", note="alone.md")).status_code == 200

    await invalidate(notes, note="n.md")
    for answer in (
        await notes.post("restore", client="BOSS", note="n.md"),
        await notes.post("invalidate", client="BOSS", note="n.md", reason="mine"),
        await notes.write("n.md", "zebra", client="BOSS", frontmatter={}),
        await notes.write("n.md", "zebra", client="BOSS", frontmatter={"invalid": "it was wrong", "invalid_by": "x"}),
        await notes.write("n.md", None, "delete", client="BOSS"),
        await notes.write("d.md", "zebra", client="BOSS", frontmatter={}),
        await notes.write("d.md", None, "delete", client="BOSS"),
    ):
        assert answer.status_code == 403, answer.text
    assert (await notes.write("n.md", "zebra more", client="BOSS")).status_code == 200  # the mark stays
    assert "n.md" not in await notes.found("zebra")
    assert (await restore(notes, note="n.md"))["total"] == 2


@requirement("memory.agents-own-marks")
async def test_an_agent_reaches_others_neither_by_a_source_nor_by_a_name(notes: Notes) -> None:
    await invalidate(notes, source=URL)
    await notes.write("Old/a.md", "zebra", frontmatter={"invalid": True})
    await notes.write("shared.md", "zebra")
    await notes.write("theirs.md", "zebra", frontmatter={"derived_from": ["[[shared]]"]})
    await notes.write("out.md", "zebra", frontmatter={"derived_from": ["[[a]]"]})
    await notes.write("c.md", "# C", frontmatter={"invalid_claims": ["#C"]})
    for entry in (URL, "[[a]]", "out.md", "[[c#C]]"):
        answer = await notes.write("shared.md", "zebra", client="BOSS", frontmatter={"derived_from": [entry]})
        assert answer.status_code == 403, entry
    # The first two would be what [[a]] leads to.
    for path, status in (("a.md", 403), ("New/a.md", 403), ("Very/Deep/a.md", 200)):
        assert (await notes.write(path, "valid", client="BOSS")).status_code == status, path
    assert sorted(await notes.found("zebra")) == ["shared.md", "theirs.md"]
    harmless = await notes.write("shared.md", "zebra", client="BOSS", frontmatter={"derived_from": ["[[c]]", "x"]})
    assert harmless.status_code == 200


@requirement("memory.agents-own-marks")
async def test_an_agent_does_not_touch_a_passage_that_somebody_else_marked(notes: Notes) -> None:
    await notes.write("n.md", "# A\n\nzebra\n\n## In A\n\n# B\n\nlion\n")
    await invalidate(notes, claim="n.md#A")
    for renamed in ("# A2\n\nzebra\n\n## In A\n\n# B\n\nlion\n", "# A\n\nzebra\n\n## In A2\n\n# B\n\nlion\n"):
        assert (await notes.write("n.md", renamed, client="BOSS")).status_code == 403
    assert (await notes.post("restore", client="BOSS", claim="n.md#A")).status_code == 403
    assert (await notes.write("n.md", "# A\n\nzebra\n\n## In A\n\n# B\n\npuma\n", client="BOSS")).status_code == 200
    assert (await notes.found("zebra"), await notes.found("puma")) == ([], ["n.md"])


async def test_the_memory_of_another_tenant_is_not_invalidated(notes: Notes) -> None:
    for path, method in (("invalidate", "POST"), ("restore", "POST"), ("invalid", "GET")):
        body = None if method == "GET" else {"source": "x", "reason": "wrong"}
        answer = await notes.world.clients["OTHER"].request(method, f"/api/v1/memory/{path}", json=body)
        assert answer.status_code == 403


@requirement("memory.invalid-everywhere")
async def test_an_index_that_is_rebuilt_knows_the_invalid_sources(notes: Notes) -> None:
    await notes.write("a.md", "zebra", frontmatter={"derived_from": URL})
    await notes.write("b.md", "zebra")
    await invalidate(notes, source=URL)
    vault = notes.world.memory.default
    await vault.index.delete(["a.md", "b.md"])
    await vault.index.replace_sources({}, 0, seen=10)  # as an empty index is
    await vault.indexer.reconcile()
    assert await notes.found("zebra") == ["b.md"]


@requirement("memory.invalid-everywhere")
async def test_a_source_that_did_not_reach_the_index_does_when_the_call_is_repeated(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await notes.write("a.md", "zebra", frontmatter={"derived_from": URL})

    async def fail(*args: Any, **options: Any) -> None:
        raise StoreUnavailable("The disk is full.")

    with monkeypatch.context() as full:
        full.setattr(notes.world.memory.default.index, "replace_sources", fail)
        answer = await notes.post("invalidate", source=URL, reason="wrong")
    assert answer.status_code == 503
    assert answer.json()["error"]["message"].startswith("The change was made, but searches follow it only after")
    assert answer.headers["x-should-retry"] == "false"
    assert await notes.found("zebra") == ["a.md"]
    assert (await notes.post("invalidate", source=URL, reason="wrong")).status_code == 409
    assert await notes.found("zebra") == []


def fail_after_first(notes: Notes, patch: pytest.MonkeyPatch) -> None:
    """The list of what is invalid is read before a change, and cannot be read after it."""
    index, calls = notes.world.memory.default.index, count()
    read = index.list_exclusions

    async def list_exclusions() -> Any:
        if next(calls):
            raise StoreUnavailable.of_driver("The server is gone.")
        return await read()

    patch.setattr(index, "list_exclusions", list_exclusions)


@pytest.mark.parametrize("target", [{"note": "a.md"}, {"source": URL}], ids=["note", "source"])
async def test_an_outage_after_the_change_does_not_say_that_nothing_was_written(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, target: dict[str, Any]
) -> None:
    await notes.write("a.md", "zebra", frontmatter={"derived_from": URL})
    for path, done in (("invalidate", "The mark was made,"), ("restore", "The mark was removed,")):
        with monkeypatch.context() as outage:
            fail_after_first(notes, outage)
            answer = await notes.post(path, reason="wrong", **target)
        assert answer.status_code == 503
        assert answer.json()["error"]["message"].startswith(done)
        assert answer.headers["x-should-retry"] == "false"
        assert await notes.found("zebra") == ([] if path == "invalidate" else ["a.md"])


async def test_a_deletion_is_a_success_though_what_returns_cannot_be_read(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await notes.write("a.md", "zebra", frontmatter={"invalid": "wrong"})
    await notes.until_found("zebra", [])
    fail_after_first(notes, monkeypatch)
    answer = await notes.write("a.md", None, "delete")
    assert (answer.status_code, answer.json()["status"]) == (200, "success")
    assert not (notes.root / "a.md").exists()


async def test_a_source_beyond_those_that_have_an_effect_is_refused(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_ACTIVE", 1)
    await invalidate(notes, source="one")
    assert (await notes.post("invalidate", source="two", reason="wrong")).status_code == 409
    await restore(notes, source="one")
    await invalidate(notes, source="two")
