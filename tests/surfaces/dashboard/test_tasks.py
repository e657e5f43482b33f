"""Task records, activity and reports."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from stentor.core.db import Sql
from stentor.core.runlog import EventDraft
from stentor.domains.activity.operations import ReportOut
from stentor.surfaces.dashboard import wire
from tests.requirements import requirement
from tests.surfaces.dashboard.board import Board

REPORT = "---\ntitle: Weekly\ntask_id: {}\nagent: ann\ncreated: 2026-11-20T10:00:00Z\n---\n# Heading\n\nAll\nis well.\n"


@requirement("dashboard.task-record", "dashboard.unversioned-paths")
async def test_a_task_is_found_by_its_exact_id_in_any_status(board: Board) -> None:
    world = board.world
    agent = await world.register()
    done = await world.do(agent, ok=True)
    failed = await world.do(agent, ok=False)
    waiting = await world.submit(metadata={"tags": ["blue"], "priority": "high"})
    found = {task_id: await board.get(f"/api/tasks/{task_id}") for task_id in (done, failed, waiting)}
    for task_id, record in found.items():
        wire.TaskRecord.model_validate(record)
        assert (record["task_id"], record["input"], record["assigned_agent"]) == (task_id, "hello", agent)
    assert (found[done]["status"], found[done]["result"], found[done]["outcome_class"]) == (
        "completed",
        "hi",
        "success",
    )
    assert (found[failed]["status"], found[failed]["error"]["message"]) == ("failed", "no")
    assert (found[waiting]["status"], found[waiting]["task_tags"], found[waiting]["priority"]) == (
        "queued",
        ["blue"],
        "high",
    )
    assert (await world.admin.get(f"/api/tasks/{done}")).status_code == 404


@requirement("dashboard.task-routing-failed")
async def test_a_task_whose_routing_failed_says_so(board: Board) -> None:
    answer = await board.world.admin.post(
        "/api/v1/tasks", json={"id": "lost", "type": "x", "input": 1, "required_capabilities": ["nobody"]}
    )
    assert answer.status_code == 422
    assert (await board.get("/api/tasks/lost"))["status"] == "routing_failed"
    trail = await board.get("/api/tasks/lost/activity")
    assert (trail["status"], trail["outcome_class"], trail["learning_eligible"]) == (
        "routing_failed",
        "routing_failed",
        False,
    )


@requirement("dashboard.task-failures")
@pytest.mark.parametrize("task_id", ["unknown", "x" * 256, "a\0b", ""], ids=["unknown", "long", "nul", "empty"])
async def test_what_is_no_id_of_a_task_is_404(board: Board, task_id: str) -> None:
    for path in (f"/api/tasks/{quote(task_id)}", f"/api/tasks/{quote(task_id)}/activity"):
        assert (await board.get(path, 404))["error"]["code"] == "NOT_FOUND"


@requirement("dashboard.task-id-is-never-a-path")
async def test_an_id_that_is_a_path_is_an_id_like_any_other(make_board: Any) -> None:
    board: Board = await make_board(SERVICE_TASK_NOTES="1")
    await board.world.register()
    (board.vault / "Tasks").mkdir()
    (board.vault / "Tasks" / "note.md").write_text("---\ntask_id: note\n---\n")
    for path in ("Tasks/note.md", "../vault/Tasks/note.md", "/etc/passwd", str(board.vault / "Tasks/note.md"), "note"):
        await board.get(f"/api/tasks/{quote(path, safe='')}", 404)
        await board.get(f"/api/tasks/{quote(path, safe='')}/activity", 404)
    odd = "../../etc/passwd"
    await board.world.submit(id=odd)
    record = await board.get(f"/api/tasks/{quote(odd, safe='')}")
    assert record["task_id"] == odd
    assert ".." not in record["note_path"]
    assert "passwd" not in record["note_path"]


@requirement("dashboard.one-tenant")
async def test_another_tenants_task_does_not_exist(board: Board) -> None:
    other = board.world.clients["OTHER"]
    await other.post("/api/v1/registry/agents", json={"name": "foreign", "capabilities": ["echo"]})
    body = {"id": "theirs", "type": "echo", "input": 1, "required_capabilities": ["echo"]}
    assert (await other.post("/api/v1/tasks", json=body)).status_code == 202
    await board.get("/api/tasks/theirs", 404)
    await board.get("/api/tasks/theirs/activity", 404)


@requirement("dashboard.task-failures", "dashboard.activity-failures")
async def test_a_vault_that_cannot_be_read_is_500(make_board: Any, tmp_path: Any) -> None:
    board: Board = await make_board(SERVICE_TASK_NOTES="1")
    await board.world.register()
    task_id = await board.world.submit()
    assert (await board.get(f"/api/tasks/{task_id}"))["status"] == "queued"
    board.vault.rename(tmp_path / "elsewhere")
    for path in (f"/api/tasks/{task_id}", f"/api/tasks/{task_id}/activity", "/api/reports"):
        error = (await board.get(path, 500))["error"]
        assert error["code"] == "INTERNAL_ERROR"
        assert str(tmp_path) not in error["message"]


@requirement("dashboard.task-failures", "dashboard.activity-failures")
@pytest.mark.parametrize(("table", "path"), [("tasks", ""), ("events", "/activity")])
async def test_rows_that_cannot_be_read_are_500(board: Board, table: str, path: str) -> None:
    await board.world.register()
    task_id = await board.world.submit()
    db = board.world.kernel.infra.db
    await db.write(lambda tx: tx.run(Sql(f"alter table {table} rename to hidden")))
    error = (await board.get(f"/api/tasks/{task_id}{path}", 500))["error"]
    await db.write(lambda tx: tx.run(Sql(f"alter table hidden rename to {table}")))
    assert error["code"] == "INTERNAL_ERROR"
    assert "hidden" not in error["message"]


@requirement("dashboard.activity")
async def test_the_activity_has_the_task_its_routing_and_its_events(board: Board) -> None:
    agent = await board.world.register()
    task_id = await board.world.do(agent)
    trail = await board.get(f"/api/tasks/{task_id}/activity")
    wire.Trail.model_validate(trail)
    kinds = [event["event_type"] for event in trail["events"]]
    assert kinds[:4] == ["prompt_received", "routing_decision", "task_queued", "task_started"]
    assert "task_completed" in kinds
    assert trail["task"] == await board.get(f"/api/tasks/{task_id}")
    assert (trail["status"], trail["agent_name"], trail["capability"]) == ("completed", "ann", "echo")
    assert trail["routing"]["agent_id"] == agent
    assert (trail["outcome_class"], trail["learning_eligible"], trail["reports"]) == ("success", True, [])
    assert trail["provenance_id"] == trail["events"][0]["event_id"]
    assert all(event["metadata"]["task_id"] == task_id for event in trail["events"])
    first = await board.get(f"/api/tasks/{task_id}/activity", limit=2)
    assert [event["event_type"] for event in first["events"]] == kinds[:2]
    assert first["status"] == "completed"


@requirement("dashboard.activity-failures")
@pytest.mark.parametrize("limit", ["0", "501", "-1", "x", ""])
async def test_a_limit_out_of_range_is_400_even_for_an_unknown_task(board: Board, limit: str) -> None:
    assert (await board.get("/api/tasks/unknown/activity", 400, limit=limit))["error"]["code"] == "INVALID_REQUEST"


@requirement("dashboard.activity-latest-status")
async def test_a_later_status_of_an_event_overrides_that_of_the_record(board: Board) -> None:
    await board.world.register()
    task_id = await board.world.submit()
    assert (await board.get(f"/api/tasks/{task_id}/activity"))["status"] == "queued"
    kernel = board.world.kernel
    late = EventDraft("agent_logged", "worker", "Nearly done.", {"status": "executing"})
    await kernel.infra.db.write(lambda tx: kernel.infra.runlog.append(tx, "default", [late], task_id=task_id))
    trail = await board.get(f"/api/tasks/{task_id}/activity")
    assert (trail["status"], trail["task"]["status"]) == ("executing", "queued")


@requirement("dashboard.activity-nullable")
async def test_what_is_not_known_is_null(board: Board) -> None:
    kernel = board.world.kernel
    event = EventDraft("agent_logged", "worker", "Something was said.", {})
    await kernel.infra.db.write(lambda tx: kernel.infra.runlog.append(tx, "default", [event], task_id="gone"))
    trail = await board.get("/api/tasks/gone/activity")
    wire.Trail.model_validate(trail)
    for name in (
        "task", "provenance_id", "agent_name", "capability", "provider", "routing", "outcome_class",
        "learning_eligible",
    ):  # fmt: skip
        assert trail[name] is None
    assert (len(trail["events"]), trail["reports"], trail["status"]) == (1, [], "unknown")
    await board.get("/api/tasks/gone", 404)


@requirement("dashboard.reports", "dashboard.report-notes")
async def test_reports_are_notes_of_the_vault_and_belong_to_the_task_that_they_name(board: Board) -> None:
    assert await board.get("/api/reports") == []
    await board.world.register()
    task_id = await board.world.submit()
    folder = board.vault / "Reports" / "2026"
    folder.mkdir(parents=True)
    (folder / "week.md").write_text(REPORT.format(task_id))
    (folder / "other.md").write_text(REPORT.format(f"{task_id}0"))
    (folder / "bad.md").write_text("---\n[: no\n---\n# Broken\n")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (board.vault / "week.md").write_text(REPORT.format(task_id))
    reports = await board.get("/api/reports")
    assert {one["path"] for one in reports} == {f"Reports/2026/{name}.md" for name in ("week", "other", "bad")}
    for one in reports:
        ReportOut.model_validate(one)
    trail = await board.get(f"/api/tasks/{task_id}/activity")
    assert trail["reports"] == [one for one in reports if one["path"].endswith("/week.md")]
    week = trail["reports"][0]
    assert (week["title"], week["agent_name"], week["created_at"], week["summary"]) == (
        "Weekly",
        "ann",
        "2026-11-20T10:00:00Z",
        "All is well.",
    )
    broken = next(one for one in reports if one["path"].endswith("/bad.md"))
    assert (broken["title"], broken["task_id"]) == ("Broken", None)


async def test_a_report_that_changes_is_read_again(board: Board) -> None:
    folder = board.vault / "Reports"
    folder.mkdir()
    (folder / "one.md").write_text("# First\n")
    assert [one["title"] for one in await board.get("/api/reports")] == ["First"]
    (folder / "one.md").write_text("# The second\n")
    assert [one["title"] for one in await board.get("/api/reports")] == ["The second"]
    (folder / "one.md").unlink()
    assert await board.get("/api/reports") == []


async def test_long_parts_of_a_task_are_cut_and_named(board: Board) -> None:
    await board.world.register()
    task_id = await board.world.submit(input="x" * 300_000)
    record = await board.get(f"/api/tasks/{task_id}")
    assert record["truncated"] == ["input"]
    assert record["input"] == '"' + "x" * 49_999
