"""The mirror and the inbox of a real service, from outside: its folder, its API, its commands, and kill -9."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stentor_vault.notes import frontmatter
from tests import forkserver
from tests.conftest import Service
from tests.patience import until
from tests.requirements import requirement
from tests.service import SHORT_LEASE

TEXT = "Agents do tasks. Stentor routes each one. It records why."
NOTE = f"---\ntype: summarize\nrequired_capabilities: [summarize]\n---\n{TEXT}\n"
BODY = {"type": "summarize", "input": TEXT, "required_capabilities": ["summarize"]}
QUICK = {"SERVICE_EMBEDDING_MODEL": "none", "SERVICE_INBOX_QUIET_SECONDS": "0.2", **SHORT_LEASE}


def statuses(service: Service) -> dict[str, str]:
    found = {}
    for path in (service.data_dir / "vault" / "Tasks").glob("[0-9]*/*/*.md"):
        record = frontmatter.read(path.read_text())
        found[record["task_id"]] = record["status"]
    return found


def submit(service: Service, count: int) -> list[str]:
    with service.client() as client:
        answers = [client.post("/api/v1/tasks", json=BODY) for _ in range(count)]
    assert {answer.status_code for answer in answers} <= {202}
    return [answer.json()["task_id"] for answer in answers]


def listed(service: Service) -> list[dict[str, Any]]:
    with service.client() as client:
        return list(client.get("/api/v1/tasks").json()["tasks"])


def until_completed(service: Service, ids: list[str]) -> None:
    until(lambda: statuses(service) == dict.fromkeys(ids, "completed"))


def until_listed(service: Service, count: int) -> None:
    until(lambda: len(listed(service)) >= count)


def inbox(service: Service) -> Path:
    folder = service.data_dir / "vault" / "Tasks" / "Inbox"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def command(service: Service, *words: str) -> subprocess.CompletedProcess[str]:
    words = (*words, "--data-dir", str(service.data_dir), "--key", service.key)
    return forkserver.run_text(words, service.environ)


@requirement("tasks.note-mirrors-task", "tasks.inbox-note-becomes-task")
def test_a_task_gets_its_note_and_a_note_gets_its_answer(serve: Callable[..., Service]) -> None:
    service = serve(**QUICK)
    (task_id,) = submit(service, 1)
    until(lambda: statuses(service).get(task_id) == "completed")
    note = inbox(service) / "What is Stentor.md"
    note.write_text(NOTE)
    answer = note.with_name("What is Stentor (answer).md")
    until(answer.exists)
    read = frontmatter.read(answer.read_text())
    assert (read["status"], read["agent"]) == ("completed", "summarizer")
    assert "Stentor routes each one." in answer.read_text()
    assert note.read_text() == NOTE
    until(lambda: statuses(service).get(read["task_id"]) == "completed")


@pytest.mark.fault
@requirement("tasks.note-survives-crash")
def test_a_kill_between_the_commit_and_the_note_loses_no_note(serve: Callable[..., Service]) -> None:
    service = serve(**QUICK)
    ids = submit(service, 1)
    until_completed(service, ids)
    vault = service.data_dir / "vault"
    for _ in range(2):
        vault.rename(vault.with_name("away"))  # so that no note can come before the kill
        ids += submit(service, 5)
        service.kill()
        vault.with_name("away").rename(vault)
        assert len(statuses(service)) < len(ids)
        service = serve(**QUICK)
        until_completed(service, ids)
    assert set(statuses(service)) == set(ids)


@pytest.mark.slow
@pytest.mark.fault
@requirement("tasks.note-survives-crash", "tasks.note-written-after-commit")
def test_two_hundred_tasks_and_a_kill_leave_two_hundred_final_notes(serve: Callable[..., Service]) -> None:
    service = serve(**QUICK)
    ids = submit(service, 150)
    until(lambda: len(statuses(service)) > 20)
    service.kill()
    service = serve(**QUICK)
    ids += submit(service, 50)
    until_completed(service, ids)
    assert [path.name for path in (service.data_dir / "vault" / "Tasks").rglob(".stentor*")] == []


@pytest.mark.fault
@requirement("tasks.inbox-once")
def test_a_kill_at_any_moment_makes_no_second_task_of_a_note(serve: Callable[..., Service]) -> None:
    service = serve(**QUICK)
    for number in range(4):
        (inbox(service) / f"q{number}.md").write_text(NOTE)
        until_listed(service, number + 1)
        time.sleep(0.02 * number)
        service.kill()
        service = serve(**QUICK)
    until(lambda: len(list(inbox(service).glob("* (answer).md"))) == 4)
    time.sleep(0.8)
    assert len(listed(service)) == 4


@requirement("tasks.note-is-rebuilt-by-reindex")
def test_the_commands_tell_of_missing_notes_and_write_them(serve: Callable[..., Service]) -> None:
    service = serve(**QUICK)
    ids = submit(service, 3)
    until_completed(service, ids)
    notes = sorted((service.data_dir / "vault" / "Tasks").rglob("*.md"))

    def told_of_both() -> subprocess.CompletedProcess[str] | None:
        """Again if the mirror had still to write these notes, and did so."""
        notes[0].unlink(missing_ok=True)
        notes[1].write_text("not this")
        told = command(service, "verify")
        return told if "2 of 3 notes differ" in told.stdout else None

    told = until(told_of_both)
    assert told is not None
    assert told.returncode == 1
    assert f"{notes[0].name} is missing: the task has no note" in told.stdout
    assert f"{notes[1].name} does not match its task" in told.stdout
    reindexed = command(service, "reindex")
    # No progress bar, nor the empty line of one: this is no terminal.
    assert (reindexed.returncode, reindexed.stderr) == (0, "")
    assert command(service, "verify").returncode == 0
    assert statuses(service) == dict.fromkeys(ids, "completed")


@requirement("tasks.note-is-rebuilt-by-reindex")
@pytest.mark.only("sqlite", reason="on PostgreSQL a command that may write needs a service")
def test_without_a_service_a_command_writes_missing_notes_too(serve: Callable[..., Service]) -> None:
    service = serve(**QUICK)
    ids = submit(service, 1)
    until_completed(service, ids)
    service.kill()
    for note in (service.data_dir / "vault" / "Tasks").rglob("*.md"):
        note.unlink()
    assert command(service, "reindex").returncode == 0
    assert statuses(service) == dict.fromkeys(ids, "completed")
