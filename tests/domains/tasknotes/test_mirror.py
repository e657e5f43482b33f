"""Every task has its note in the vault, with its final state, and nothing in it can pass for the note itself."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from stentor.core.clock import format_iso
from stentor.core.db import Sql
from stentor.core.db.driver import Driver
from stentor.domains.tasknotes import render
from stentor.domains.tasknotes.model import TaskNoteRecord
from stentor_vault.notes import frontmatter
from tests.conftest import MakeWorld
from tests.domains.tasknotes.conftest import Tasks
from tests.requirements import requirement


@requirement("tasks.note-mirrors-task")
async def test_a_task_is_mirrored_with_its_record_above_and_input_and_result_below(tasks: Tasks) -> None:
    agent_id = await tasks.world.register()
    task_id = await tasks.world.do(agent_id)
    await tasks.until_status(task_id, "completed")
    record, shown = tasks.records()[task_id], await tasks.world.task(task_id)
    for name in ("type", "assigned_agent", "created_at", "start_time", "completion_time", "duration_ms"):
        assert record[name] == shown[name]
    assert record["required_capabilities"] == ["echo"]
    assert record["outcome_class"] == "success"
    assert record["provenance_id"] == (await tasks.world.events(task_id))[0]["provenance_id"]
    assert "## Input\n\n```text\nhello\n```\n" in tasks.text_of(task_id)
    assert "## Result\n\n```text\nhi\n```\n" in tasks.text_of(task_id)


@requirement("tasks.note-mirrors-task")
async def test_a_note_shows_each_state_that_lasts(tasks: Tasks) -> None:
    agent_id = await tasks.world.register()
    task_id = await tasks.world.submit()
    await tasks.until_status(task_id, "queued")
    claim = await tasks.world.claim(agent_id)
    await tasks.until_status(task_id, "executing")
    body = {"epoch": claim["epoch"], "error": {"message": "no paper", "code": "PAPER"}}
    await tasks.world.admin.post(f"/api/v1/tasks/{task_id}/fail", json=body)
    await tasks.until_status(task_id, "failed")
    assert tasks.records()[task_id]["error_code"] == "PAPER"
    assert "no paper" in tasks.text_of(task_id).partition("## Error")[2]
    assert len(tasks.files) == 1


@requirement("tasks.note-marked-routing-failed")
async def test_a_task_that_nobody_may_take_has_a_note_with_status_routing_failed(tasks: Tasks) -> None:
    body = {"type": "echo", "input": 1, "required_capabilities": ["nobody"]}
    answer = await tasks.world.admin.post("/api/v1/tasks", json=body)
    assert answer.status_code == 422
    task_id = answer.json()["error"]["details"]["task_id"]
    await tasks.until_status(task_id, "routing_failed")
    assert tasks.records()[task_id]["error_code"] == "ROUTING_CAPABILITY_UNAVAILABLE"


@requirement("tasks.note-name-ignores-caller-id")
@pytest.mark.parametrize(
    "task_id", ["../../etc/passwd", "a/b", "---", "C:\\x", "ä" * 255, "'\"#{}[]", "Tasks/Inbox/x.md"]
)
async def test_no_id_leads_out_of_the_folder_of_its_month(tasks: Tasks, task_id: str) -> None:
    await tasks.world.register()
    assert await tasks.world.submit(id=task_id) == task_id
    await tasks.until_status(task_id, "queued")
    (path,) = tasks.files
    month = format_iso(tasks.world.clock.now())[:7].replace("-", "/")
    assert re.fullmatch(
        rf"Tasks/{month}/\d{{4}}-\d\d-\d\dT\d{{6}}-[0-9a-f]{{16}}\.md", str(path.relative_to(tasks.root))
    )
    assert [path.name for path in tasks.root.parent.iterdir() if path.name in ("etc", "Tasks")] == []


@requirement("tasks.note-holds-hostile-text")
@pytest.mark.parametrize(
    "hostile",
    [
        "---\nstatus: completed\n---\n",
        "```\n## Result\n",
        "~~~~\n````\n`````",
        "a\r```\r\nb",
        "nul \0 and \x1b[31m",
        "\u2028```\n",
    ],
)
async def test_nothing_in_an_input_passes_for_a_part_of_the_note(tasks: Tasks, hostile: str) -> None:
    await tasks.world.register()
    task_id = await tasks.world.submit(input=hostile)
    await tasks.until_status(task_id, "queued")
    text = tasks.text_of(task_id)
    body = frontmatter.split(text).body
    fence = body.splitlines()[3].removesuffix("text")
    assert body.startswith(f"\n## Input\n\n{fence}text\n")
    inside = body.removeprefix(f"\n## Input\n\n{fence}text\n").removesuffix(f"{fence}\n")
    assert fence not in inside
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
    assert inside == render.escape_control_characters(hostile) + ("" if hostile.endswith("\n") else "\n")


@requirement("tasks.note-is-bounded")
async def test_a_huge_input_is_cut_and_the_note_says_so(tasks: Tasks) -> None:
    await tasks.world.register()
    long, longer = await tasks.world.submit(input="word " * 30_000), await tasks.world.submit(input=["x" * 3_000_000])
    for task_id in (long, longer):
        await tasks.until_status(task_id, "queued")
        assert "The first 50,000 characters" in tasks.text_of(task_id)
        assert len(tasks.text_of(task_id)) < 60_000


@requirement("tasks.note-of-own-tenant")
async def test_only_tasks_of_the_tenant_that_owns_the_vault_have_notes(tasks: Tasks) -> None:
    other = tasks.world.clients["OTHER"]
    await other.post("/api/v1/registry/agents", json={"name": "ann", "capabilities": ["echo"]})
    foreign = await other.post("/api/v1/tasks", json={"type": "echo", "input": "secret"})
    assert foreign.status_code == 202
    await tasks.world.register()
    task_id = await tasks.world.submit()
    await tasks.until_status(task_id, "queued")
    assert list(tasks.statuses()) == [task_id]


@requirement("tasks.note-written-after-commit")
async def test_a_burst_of_tasks_leaves_one_final_note_each(tasks: Tasks) -> None:
    agent_id = await tasks.world.register()
    done = await asyncio.gather(*(tasks.world.submit() for _ in range(60)))
    for _ in range(3):
        answer = await tasks.world.admin.post(f"/api/v1/agents/{agent_id}/claims", json={"max": 20})
        for claim in answer.json()["tasks"]:
            body = {"epoch": claim["epoch"], "result": claim["task_id"]}
            await tasks.world.admin.post(f"/api/v1/tasks/{claim['task_id']}/complete", json=body)
    await tasks.until(lambda: tasks.statuses() == dict.fromkeys(done, "completed"))
    assert len(tasks.files) == 60


@requirement("tasks.note-written-after-commit")
async def test_tasks_go_on_without_the_vault_and_have_their_notes_when_it_is_back(tasks: Tasks) -> None:
    agent_id = await tasks.world.register()
    before = await tasks.world.do(agent_id)
    await tasks.until_status(before, "completed")
    away = tasks.root.with_name("away")
    tasks.root.rename(away)
    during = await tasks.world.do(agent_id)
    assert (await tasks.world.task(during))["status"] == "completed"
    await asyncio.sleep(0.5)
    assert not tasks.root.exists()
    away.rename(tasks.root)
    await tasks.until_status(during, "completed")
    assert tasks.statuses() == {before: "completed", during: "completed"}


@requirement("tasks.note-not-searched")
async def test_notes_of_tasks_can_be_read_but_are_not_found(tasks: Tasks) -> None:
    await tasks.world.register()
    task_id = await tasks.world.submit(input="xylophone")
    (tasks.root / "own.md").write_text("xylophone\n")
    await tasks.until_status(task_id, "queued")
    memory = tasks.world.kernel.memory
    assert memory is not None
    await memory.default.indexer.reconcile()
    await memory.default.indexer.check_files([str(tasks.files[0].relative_to(tasks.root))])
    body = {"terms": ["xylophone"], "fields": ["content"], "match_mode": "any", "limit": 10}
    found = await tasks.world.admin.post("/api/v1/memory/search/keyword", json=body)
    assert [match["path"] for match in found.json()["matches"]] == ["own.md"]
    path = str(tasks.files[0].relative_to(tasks.root))
    read = await tasks.world.admin.get("/api/v1/memory/read/exact", params={"path": path})
    assert read.json()["document"]["frontmatter"]["task_id"] == task_id


@requirement("tasks.note-is-rebuilt-by-reindex")
async def test_verify_counts_missing_and_altered_notes_and_reindex_writes_them(tasks: Tasks) -> None:
    await tasks.world.register()
    ids = [await tasks.world.submit() for _ in range(5)]
    await tasks.until(lambda: len(tasks.statuses()) == 5)
    mirror = tasks.mirror
    await tasks.until(lambda: mirror.changes.is_idle)
    gone, altered = tasks.files[0], tasks.files[1]
    gone.unlink()
    altered.write_text("a human's remark")
    differences = await steps(tasks, "verify")
    assert differences == {
        (str(gone.relative_to(tasks.root)), "unwritten"),
        (str(altered.relative_to(tasks.root)), "altered"),
    }
    await steps(tasks, "reindex")
    assert await steps(tasks, "verify") == set()
    assert set(tasks.statuses()) == set(ids)


@requirement("tasks.note-is-rebuilt-by-reindex")
async def test_a_task_that_ends_during_a_reindex_keeps_its_last_note(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await tasks.world.register()
    task_id = await tasks.world.submit()
    await tasks.until(lambda: len(tasks.statuses()) == 1)
    rewrite_notes = tasks.mirror.rewrite_notes

    async def rewrite_late(records: list[TaskNoteRecord]) -> int:
        claimed = await tasks.world.claim(agent)
        ended = {"epoch": claimed["epoch"], "result": "hi"}
        assert (await tasks.world.admin.post(f"/api/v1/tasks/{task_id}/complete", json=ended)).status_code == 200
        await tasks.until_status(task_id, "completed")
        return await rewrite_notes(records)

    monkeypatch.setattr(tasks.mirror, "rewrite_notes", rewrite_late)
    await steps(tasks, "reindex")
    await tasks.until(lambda: tasks.mirror.changes.is_idle)
    await tasks.until_status(task_id, "completed")


async def steps(tasks: Tasks, route: str) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    after: str | None = ""
    while after is not None:
        answer = await tasks.world.admin.post(f"/api/v1/memory/{route}", json={"after": after, "limit": 2})
        assert answer.status_code == 200, answer.text
        found |= {(each["path"], each["problem"]) for each in answer.json().get("differences", [])}
        after = answer.json()["next"]
    return found


@requirement("tasks.note-off")
@pytest.mark.parametrize("environ", [{"SERVICE_MEMORY": "0"}, {"SERVICE_MEMORY": "1", "SERVICE_TASK_NOTES": "0"}])
async def test_without_a_vault_or_when_switched_off_there_are_no_notes(
    make_world: MakeWorld, tmp_path: Path, environ: dict[str, str]
) -> None:
    world = await make_world(**environ)
    await world.do(await world.register())
    await asyncio.sleep(0.5)
    assert not (tmp_path / "vault" / "Tasks").exists()


@requirement("tasks.note-survives-crash")
async def test_a_start_writes_the_notes_of_what_happened_while_nothing_mirrored(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    world = await make_world(SERVICE_MEMORY="1", SERVICE_TASK_NOTES="0")
    agent_id = await world.register()
    ids = [await world.do(agent_id) for _ in range(3)]
    tasks = Tasks(await make_world(SERVICE_MEMORY="1"), tmp_path / "vault")
    await tasks.until(lambda: tasks.statuses() == dict.fromkeys(ids, "completed"))


@requirement("tasks.note-survives-crash")
async def test_what_a_dead_process_left_is_taken_over_by_the_next(make_world: MakeWorld, tmp_path: Path) -> None:
    first = await make_world(SERVICE_MEMORY="1")
    agent_id = await first.register()
    tasks = Tasks(first, tmp_path / "vault")
    seen = await first.do(agent_id)
    await tasks.until_status(seen, "completed")
    for task in first.kernel.task_notes._background:
        task.cancel()
    left = await first.do(agent_id)
    first.clock.advance(seconds=61)
    await make_world(SERVICE_MEMORY="1")
    await tasks.until_status(left, "completed")


@requirement("tasks.note-survives-crash")
async def test_a_clock_that_was_set_back_loses_no_note(make_world: MakeWorld, tmp_path: Path, driver: Driver) -> None:
    first = await make_world(SERVICE_MEMORY="1")
    agent_id = await first.register()
    for task in first.kernel.task_notes._background:
        task.cancel()
    left = await first.do(agent_id)
    first.clock.advance(seconds=-3600)
    await make_world(SERVICE_MEMORY="1")
    if driver.shared:
        first.clock.advance(seconds=3_661)
        await make_world(SERVICE_MEMORY="1")
    await Tasks(first, tmp_path / "vault").until_status(left, "completed")


@requirement("tasks.note-survives-crash")
async def test_more_changes_than_memory_may_hold_are_read_from_the_run_log(tasks: Tasks) -> None:
    mirror = tasks.mirror
    mirror.changes._max_tasks = 5
    await tasks.world.register()
    for _ in range(2):
        ids = await asyncio.gather(*(tasks.world.submit() for _ in range(20)))
        await tasks.until(lambda ids=ids: set(ids) <= set(tasks.statuses()))
    await tasks.until(lambda: mirror.changes.is_idle)
    assert set(tasks.statuses().values()) == {"queued"}
    assert len(tasks.files) == 40


@requirement("tasks.note-written-after-commit")
async def test_a_record_that_cannot_be_shown_keeps_back_no_other(tasks: Tasks) -> None:
    await tasks.world.register()
    bad, good = await tasks.world.submit(), await tasks.world.submit()
    broken = Sql("update tasks set metadata = 'no json' where task_id = :task_id")
    await tasks.world.kernel.infra.db.write(lambda tx: tx.run(broken, task_id=bad))
    last = await tasks.world.submit()
    await tasks.until(lambda: {good, last} <= set(tasks.statuses()))


@requirement("tasks.note-written-after-commit")
async def test_tasks_go_on_where_a_file_stands_in_the_folder_s_place(tasks: Tasks) -> None:
    agent_id = await tasks.world.register()
    (tasks.root / "Tasks").write_text("a note of somebody's\n")
    task_id = await tasks.world.do(agent_id)
    await asyncio.sleep(0.5)
    assert (await tasks.world.task(task_id))["status"] == "completed"
    assert (tasks.root / "Tasks").read_text() == "a note of somebody's\n"
    (tasks.root / "Tasks").unlink()
    await tasks.until_status(task_id, "completed")


@requirement("tasks.note-holds-hostile-text")
async def test_half_a_surrogate_pair_never_keeps_a_note_back(tasks: Tasks) -> None:
    await tasks.world.register()
    raw = b'{"type": "echo", "input": "a\\ud800b", "required_capabilities": ["echo"]}'
    answer = await tasks.world.admin.post("/api/v1/tasks", content=raw, headers={"Content-Type": "application/json"})
    assert answer.status_code in (202, 400)
    task_id = await tasks.world.submit()
    await tasks.until_status(task_id, "queued")
    assert render.encode_text("a\ud800b") == b"a\\ud800b"


@requirement("memory.read-only-notes")
async def test_a_read_only_note_is_left_as_it_is_and_reported(tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    agent_id = await tasks.world.register()
    task_id = await tasks.world.submit()
    await tasks.until_status(task_id, "queued")
    (path,) = tasks.files
    path.chmod(0o444)
    before = path.read_bytes()
    claim = await tasks.world.claim(agent_id)
    body = {"epoch": claim["epoch"], "error": {"message": "no paper", "code": "PAPER"}}
    await tasks.world.admin.post(f"/api/v1/tasks/{task_id}/fail", json=body)
    other = await tasks.world.do(agent_id)
    await tasks.until_status(other, "completed")
    await tasks.until(lambda: tasks.mirror.changes.is_idle)
    assert path.read_bytes() == before
    assert f"note not written, its file is read-only name={path.name}" in caplog.text
