"""A person's note in the inbox becomes a task once, and its answer appears beside it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stentor.domains.tasknotes import inbox as inbox_of_notes
from stentor_vault.notes import frontmatter
from tests.conftest import MakeWorld
from tests.domains.memory.conftest import Notes
from tests.domains.tasknotes.conftest import Tasks
from tests.patience import soon
from tests.requirements import requirement
from tests.unreadable import make_unreadable

NOTE = "---\ntype: echo\nrequired_capabilities: [echo]\n---\nWhat is new?\n"


class Inbox(Tasks):
    """The inbox's folder and what lies in it."""

    @property
    def folder(self) -> Path:
        return self.root / "Tasks" / "Inbox"

    def put(self, name: str, text: str | bytes = NOTE) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def answer(self, name: str = "q (answer).md") -> str | None:
        path = self.folder / name
        return path.read_text() if path.exists() else None

    async def until_answer(self, name: str = "q (answer).md", holding: str = "") -> dict[str, Any]:
        """The frontmatter of the answer once it is there and has this in it."""
        await self.until(lambda: holding in (self.answer(name) or "") and self.answer(name) is not None)
        text = self.answer(name)
        assert text is not None
        return frontmatter.read(text)

    async def listed(self) -> list[dict[str, Any]]:
        """All tasks, the newest first."""
        return list((await self.world.admin.get("/api/v1/tasks")).json()["tasks"])

    async def until_listed(self, count: int) -> list[dict[str, Any]]:

        async def enough() -> list[dict[str, Any]]:
            found = await self.listed()
            return found if len(found) >= count else []

        found = list(await soon(enough))
        assert len(found) == count
        return found

    async def finish(self, agent_id: str, **fields: Any) -> None:
        claim = await self.world.claim(agent_id, wait_seconds=60)
        verb = "fail" if "error" in fields else "complete"
        answer = await self.world.admin.post(
            f"/api/v1/tasks/{claim['task_id']}/{verb}", json={"epoch": claim["epoch"], **fields}
        )
        assert answer.status_code == 200, answer.text

    async def rest(self) -> None:
        """Long enough that whatever is to be taken would have been."""
        await asyncio.sleep(0.6)


@pytest.fixture
async def inbox(make_world: MakeWorld, tmp_path: Path) -> Inbox:
    return Inbox(await make_world(SERVICE_MEMORY="1", SERVICE_INBOX_QUIET_SECONDS="0.1"), tmp_path / "vault")


@requirement("tasks.inbox-note-becomes-task")
async def test_a_note_becomes_a_task_and_gets_the_result_as_its_answer(inbox: Inbox) -> None:
    agent_id = await inbox.world.register()
    note = inbox.put("q.md")
    (task,) = await inbox.until_listed(1)
    claim = await inbox.world.claim(agent_id)
    assert (claim["task_id"], claim["input"]) == (task["task_id"], "What is new?")
    body = {"epoch": claim["epoch"], "result": "Nothing *much*."}
    await inbox.world.admin.post(f"/api/v1/tasks/{task['task_id']}/complete", json=body)
    assert await inbox.until_answer() == {"task_id": task["task_id"], "status": "completed", "agent": "ann"}
    assert (inbox.answer() or "").endswith("---\n\nNothing *much*.\n")
    assert note.read_text() == NOTE
    await inbox.rest()
    assert len(await inbox.listed()) == 1


@requirement("tasks.inbox-principal")
async def test_the_run_log_says_that_the_inbox_submitted_it(inbox: Inbox) -> None:
    await inbox.world.register()
    inbox.put("q.md")
    (task,) = await inbox.until_listed(1)
    events = await inbox.world.events(task["task_id"])
    assert events[0]["metadata"]["by"] == "inbox"
    assert inbox.world.kernel.infra.roles.is_person("default", "inbox")


@requirement("tasks.inbox-fields")
async def test_all_fields_of_the_frontmatter_reach_the_task(inbox: Inbox) -> None:
    agent_id = await inbox.world.register()
    head = (
        f"type: echo\nrequired_capabilities:\n  - echo\ntimeout_seconds: 77\nagent_preference: {agent_id}\n"
        "priority: high\ntags: [a, b]\ncreated: 2026-01-01\n"
    )
    inbox.put("q.md", f"\ufeff---\r\n{head}---\r\n\r\nText\r\n")
    (task,) = await inbox.until_listed(1)
    shown = await inbox.world.task(task["task_id"])
    assert (shown["timeout_seconds"], shown["agent_preference"]) == (77, agent_id)
    assert shown["metadata"] == {"priority": "high", "tags": ["a", "b"]}


@requirement("tasks.inbox-answer")
async def test_an_object_is_answered_by_what_it_says_and_the_rest_below(inbox: Inbox) -> None:
    agent_id = await inbox.world.register()
    inbox.put("q.md")
    result = {"answer": "So [1].", "citations": [{"path": "a/b.md", "heading": "C"}], "sure": True}
    await inbox.finish(agent_id, result=result)
    await inbox.until_answer()
    text = inbox.answer() or ""
    assert text.partition("---\n\n")[2] == 'So [1].\n\n1. [[a/b]], C\n\n```json\n{"sure":true}\n```\n'


@requirement("tasks.inbox-answer", "memory.invalidate-note")
async def test_an_answer_leaves_the_searches_with_a_note_that_it_cites(inbox: Inbox) -> None:
    agent_id = await inbox.world.register()
    notes = Notes(inbox.world, inbox.root)
    assert (await notes.write("Offers/zylo.md", "# Zylo\n\nIt costs 4711 euros.\n")).status_code == 200
    inbox.put("q.md")
    others = [{"path": "Other.md", "heading": ""}, {"path": "C# guide.md", "heading": "Costs"}]
    citations = [{"path": "Offers/zylo.md", "heading": "Zylo"}, *others]
    await inbox.finish(agent_id, result={"answer": "It costs 4711 euros.", "citations": citations})
    assert (await inbox.until_answer())["derived_from"] == ["[[Offers/zylo#Zylo]]", "[[Other]]", "C# guide.md"]
    await notes.until_found("4711", ["Offers/zylo.md", "Tasks/Inbox/q (answer).md"])
    marked = await notes.post("invalidate", note="Offers/zylo.md", reason="withdrawn")
    assert [note["path"] for note in marked.json()["left"]] == ["Offers/zylo.md", "Tasks/Inbox/q (answer).md"]
    assert await notes.found("4711") == []


@requirement("tasks.inbox-answer")
async def test_a_failure_is_answered_with_its_error(inbox: Inbox) -> None:
    agent_id = await inbox.world.register()
    inbox.put("q.md")
    await inbox.finish(agent_id, error={"code": "PAPER", "message": "no paper\x1b"})
    assert (await inbox.until_answer())["status"] == "failed"
    assert "no paper␛ (PAPER)" in (inbox.answer() or "")


@requirement("tasks.inbox-problem-answered")
async def test_a_routing_denial_is_answered_and_the_note_is_tried_again_when_it_changed(inbox: Inbox) -> None:
    note = inbox.put("q.md")
    answer = await inbox.until_answer()
    assert answer["status"] == "routing_failed"
    assert "ROUTING_CAPABILITY_UNAVAILABLE" in (inbox.answer() or "")
    agent_id = await inbox.world.register()
    await inbox.rest()
    assert len(await inbox.listed()) == 1
    note.write_text(NOTE + "Please.\n")
    await inbox.until_listed(2)
    await inbox.finish(agent_id, result="yes")
    await inbox.until_answer(holding="yes")
    assert sorted(path.name for path in inbox.folder.iterdir()) == ["q (answer).md", "q.md"]


@requirement("tasks.inbox-note-becomes-task")
async def test_a_note_whose_name_windows_cannot_have_is_a_task(inbox: Inbox) -> None:
    agent_id = await inbox.world.register()
    inbox.put("why?.md")
    await inbox.until_listed(1)
    await inbox.finish(agent_id, result="because")
    await inbox.until(lambda: any("because" in path.read_text() for path in inbox.folder.glob("why * (answer).md")))


@requirement("tasks.inbox-problem-answered")
async def test_a_note_with_a_name_that_no_vault_accepts_is_told_so_and_is_a_task_when_it_is_renamed(
    inbox: Inbox,
) -> None:
    note = inbox.put("q\\.md")

    def answers() -> list[Path]:
        return list(inbox.folder.glob("q * (answer).md"))

    await inbox.until(lambda: bool(answers()))
    assert "Rename the note." in answers()[0].read_text()
    await inbox.world.register()
    note.rename(inbox.folder / "q.md")
    await inbox.until_listed(1)
    assert len(answers()) == 1


@requirement("tasks.inbox-problem-answered")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("---\ntype: echo\n---\ntext\n", "`required_capabilities` must name"),
        ("---\nrequired_capabilities: echo\n---\ntext\n", "`type` must be a name"),
        ('---\ntype: "\u2800"\n---\ntext\n', "`type` must be a name"),
        ("---\ntype: [\n---\ntext\n", "frontmatter is invalid"),
        ("---\n- a\n---\ntext\n", "frontmatter is invalid"),
        ("---\ntype: echo\nrequired_capabilities: echo\n---\n \n", "there is no text"),
        ("---\ntype: echo\nrequired_capabilities: echo\ntimeout_seconds: soon\n---\nx\n", "`timeout_seconds` must be"),
        ("---\ntype: echo\nrequired_capabilities: echo\npriority: now\n---\nx\n", "`priority` must be one of"),
        ("---\ntype: echo\nrequired_capabilities: {a: 1}\n---\nx\n", "`required_capabilities` must be a list"),
        ("---\ntype: echo\nrequired_capabilities: echo\nagent_preference: ann\n---\nx\n", "the id of an agent"),
        ("---\ntype: echo\nrequired_capabilities: echo\n---\na\0b\n", "NUL"),
        (b"---\ntype: echo\nrequired_capabilities: echo\n---\n\xff\xfe\n", "UTF-8"),
        (NOTE.encode("utf-16"), "UTF-8"),
        ("---\ntype: echo\nrequired_capabilities: echo\n---\n" + "x" * 1_000_000, "at most 1,000,000 are allowed"),
    ],
)
async def test_a_note_that_is_no_task_is_told_what_to_change(inbox: Inbox, text: str | bytes, said: str) -> None:
    note = inbox.put("q.md", text)
    assert await inbox.until_answer(holding=said) == {"task_id": None, "status": "refused", "agent": None}
    assert await inbox.listed() == []
    await inbox.world.register()
    note.write_text(NOTE)
    await inbox.until_listed(1)
    await inbox.finish((await inbox.listed())[0]["assigned_agent"], result="now it is")
    await inbox.until_answer(holding="now it is")


@requirement("tasks.inbox-others-ignored")
async def test_files_that_are_no_requests_are_left_alone(inbox: Inbox) -> None:
    await inbox.world.register()
    inbox.put("plain.md", "a shopping list\n")
    inbox.put("empty.md", "---\n---\ntext\n")
    inbox.put("table.csv", NOTE)
    inbox.put(".hidden.md", NOTE)
    inbox.put("deeper/q.md", NOTE)
    inbox.put("q (Conflicted copy phone 202601010000).md", NOTE)
    inbox.put("old (answer).md", NOTE)
    before = sorted(inbox.folder.iterdir())
    await inbox.rest()
    assert await inbox.listed() == []
    assert sorted(inbox.folder.iterdir()) == before


@requirement("tasks.inbox-waits-for-rest")
async def test_a_note_that_is_being_typed_is_taken_when_the_typing_has_ended(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks = [0.0], [0]

    def monotonic() -> float:
        looks[0] += 1
        return now[0]

    monkeypatch.setattr(inbox_of_notes, "time", SimpleNamespace(monotonic=monotonic))
    world = await make_world(SERVICE_MEMORY="1", SERVICE_INBOX_QUIET_SECONDS="4")
    inbox = Inbox(world, tmp_path / "vault")
    agent_id = await inbox.world.register()
    for n in range(3):
        inbox.put("q.md", NOTE + "word " * n)
        for seconds in (0, 3):
            now[0] += seconds
            seen = looks[0]
            await soon(lambda: looks[0] > seen + 1)  # noqa: B023 - a look that began after the note was written
    assert await inbox.listed() == []
    now[0] += 1
    await inbox.until_listed(1)
    # It is listed a moment before it is in the queue.
    claim = await inbox.world.claim(agent_id, wait_seconds=30)
    assert claim["input"] == "What is new?\n" + ("word " * 2).strip()


@requirement("tasks.inbox-answer-overwrites-nothing", "memory.read-only-notes")
async def test_beside_a_read_only_answer_the_next_one_gets_another_name(inbox: Inbox) -> None:
    note = inbox.put("q.md", "---\ntype: echo\n---\nx\n")
    await inbox.until_answer()
    await inbox.rest()
    refusal = inbox.answer()
    (inbox.folder / "q (answer).md").chmod(0o444)
    agent_id = await inbox.world.register()
    note.write_text(NOTE)
    await inbox.finish(agent_id, result="good")
    await inbox.until_answer("q (answer 2).md", holding="good")
    assert inbox.answer() == refusal


@requirement("tasks.inbox-once")
async def test_a_note_that_is_edited_while_its_task_runs_makes_no_second_task(inbox: Inbox) -> None:
    agent_id = await inbox.world.register()
    note = inbox.put("q.md")
    await inbox.until_listed(1)
    note.write_text(NOTE + "One more thing.\n")
    await inbox.rest()
    await inbox.finish(agent_id, result="first")
    assert (await inbox.until_answer())["note_changed"] is True
    await inbox.rest()
    assert len(await inbox.listed()) == 1


@requirement("tasks.inbox-asks-again")
async def test_deleting_the_answer_and_saving_asks_again(inbox: Inbox) -> None:
    agent_id = await inbox.world.register()
    note = inbox.put("q.md")
    await inbox.finish(agent_id, result="first")
    await inbox.until_answer(holding="first")
    note.write_text(NOTE + "More.\n")
    await inbox.rest()
    assert len(await inbox.listed()) == 1
    note.write_text(NOTE)
    os.utime(note, ns=(0, 0))
    await inbox.rest()
    (inbox.folder / "q (answer).md").unlink()
    await inbox.until_listed(2)
    await inbox.finish(agent_id, result="second")
    await inbox.until_answer(holding="second")


@requirement("tasks.inbox-asks-again")
async def test_an_answer_that_is_moved_away_does_not_ask_again(inbox: Inbox) -> None:
    agent_id = await inbox.world.register()
    inbox.put("q.md")
    await inbox.finish(agent_id, result="first")
    await inbox.until_answer(holding="first")
    await inbox.rest()
    (inbox.folder / "q (answer).md").rename(inbox.root / "kept.md")
    await inbox.rest()
    assert len(await inbox.listed()) == 1
    assert inbox.answer() is None


@requirement("tasks.inbox-answer-overwrites-nothing")
async def test_a_person_s_remarks_in_an_answer_stay(inbox: Inbox) -> None:
    note = inbox.put("q.md", "---\ntype: echo\n---\nx\n")
    await inbox.until_answer()
    await inbox.rest()
    (inbox.folder / "q (answer).md").write_text("my remark\n")
    agent_id = await inbox.world.register()
    note.write_text(NOTE)
    await inbox.finish(agent_id, result="good")
    await inbox.until_answer("q (answer 2).md", holding="good")
    assert inbox.answer() == "my remark\n"


@requirement("tasks.inbox-once")
async def test_a_note_with_an_answer_is_not_asked_again_by_a_database_that_does_not_know_it(inbox: Inbox) -> None:
    await inbox.world.register()
    inbox.put("q (answer).md", "an answer of old\n")
    inbox.put("q.md")
    await inbox.rest()
    assert await inbox.listed() == []
    assert inbox.answer() == "an answer of old\n"


@requirement("tasks.inbox-once")
async def test_two_services_on_one_database_and_vault_make_one_task_and_one_answer(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    environ = {"SERVICE_MEMORY": "1", "SERVICE_INBOX_QUIET_SECONDS": "0.1", "SERVICE_BUILTIN_AGENTS": "1"}
    inbox = Inbox(await make_world(**environ), tmp_path / "vault")
    await make_world(**environ)
    inbox.put("q.md", "---\ntype: summarize\nrequired_capabilities: [summarize]\n---\nOne sentence stands here.\n")
    await inbox.until_answer(holding="One sentence stands here.")
    await inbox.rest()
    assert len(await inbox.listed()) == 1
    assert sorted(path.name for path in inbox.folder.iterdir()) == ["q (answer).md", "q.md"]


@requirement("tasks.inbox-off")
async def test_it_can_be_switched_off(make_world: MakeWorld, tmp_path: Path) -> None:
    world = await make_world(SERVICE_MEMORY="1", SERVICE_TASK_INBOX="0", SERVICE_INBOX_QUIET_SECONDS="0")
    inbox = Inbox(world, tmp_path / "vault")
    await world.register()
    inbox.put("q.md")
    await inbox.rest()
    assert await inbox.listed() == []


@requirement("tasks.inbox-without-events")
async def test_a_note_is_found_without_events_of_the_file_system(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stentor.domains.tasknotes.inbox.SCAN_SECONDS", 0.2)
    world = await make_world(SERVICE_MEMORY="1", SERVICE_INBOX_QUIET_SECONDS="0.1")
    assert world.kernel.memory is not None
    world.kernel.memory.default.watcher.on_change = lambda paths: None
    inbox = Inbox(world, tmp_path / "vault")
    agent_id = await world.register()
    inbox.put("q.md")
    await inbox.finish(agent_id, result="found")
    await inbox.until_answer(holding="found")


@requirement("memory.unreadable-left-out")
async def test_a_note_that_may_not_be_read_is_left_alone_and_others_become_tasks(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_unreadable(monkeypatch, "a.md")
    agent_id = await inbox.world.register()
    inbox.put("a.md")
    inbox.put("q.md")
    await inbox.until_listed(1)
    await inbox.finish(agent_id, result="here")
    await inbox.until_answer(holding="here")
    assert inbox.answer("a (answer).md") is None


@requirement("tasks.inbox-answer")
async def test_a_note_that_is_gone_gets_no_answer_and_others_still_do(inbox: Inbox) -> None:
    agent_id = await inbox.world.register()
    inbox.put("gone.md")
    await inbox.until_listed(1)
    (inbox.folder / "gone.md").unlink()
    await inbox.finish(agent_id, result="nobody reads this")
    inbox.put("q.md")
    await inbox.finish(agent_id, result="here")
    await inbox.until_answer(holding="here")
    assert sorted(path.name for path in inbox.folder.iterdir()) == ["q (answer).md", "q.md"]


@requirement("tasks.inbox-authority")
async def test_a_note_asks_for_what_the_inbox_may_and_no_more(make_world: MakeWorld, tmp_path: Path) -> None:
    settings = {"SERVICE_MEMORY": "1", "SERVICE_INBOX_QUIET_SECONDS": "0", "SERVICE_TASK_INBOX_CAPABILITIES": "sum"}
    inbox = Inbox(await make_world(**settings), tmp_path / "vault")
    await inbox.world.register()
    inbox.put("q.md")
    await inbox.until_answer()
    assert "may require these capabilities, and at least one of them: sum" in (inbox.answer() or "")
    assert await inbox.listed() == []
