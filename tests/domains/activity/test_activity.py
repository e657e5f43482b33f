"""The activity trail: shape, limits, parents, and what it may not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from stentor.core.db import Sql
from stentor.core.runlog import EventType
from tests.conftest import MakeWorld, World
from tests.requirements import requirement

OF_TASKS = set(get_args(EventType)) - {
    "content_deleted",
    "person_changed",
    "sign_in_refused",
    *("agent_registered", "agent_updated", "agent_status_changed", "violation_recorded"),
    *("trust_changed", "connection_changed", "provider_changed", "authority_granted", "authority_revoked"),
    *("update_submitted", "update_approved", "update_rejected", "update_deploying", "update_deployed"),
    *("update_rolled_back", "checkpoint_taken", "checkpoints_expired"),
    *("rollback_started", "rollback_in_progress", "rollback_completed", "rollback_failed"),
    *(
        "signed_in",
        "sign_in_refused",
        "alert_opened",
        "alert_thresholds_changed",
        "alert_resolved",
        "history_accepted",
        "version_named",
        "memory_invalidated",
        "memory_restored",
        "agent_logged",
        "key_changed",
        "schedule_changed",
        "session_created",
        "session_deleted",
        "budget_changed",
        "model_route_changed",
        "webhook_changed",
        "webhook_disabled",
        "webhook_pinged",
        "webhook_replayed",
    ),
    *("message_received", "message_started", "message_requeued", "message_completed", "message_failed"),
}


async def trail(world: World, task_id: str, **params: Any) -> dict[str, Any]:
    answer = await world.admin.get(f"/api/v1/tasks/{task_id}/activity", params=params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def eventful(world: World) -> str:
    """A task that waited, was approved, lost its lease, failed, was retried and done."""
    agent = await world.register(trust_tier="human")
    task_id = await world.submit()
    path = f"/api/v1/tasks/{task_id}"
    await world.admin.post(f"{path}/approve")
    await world.claim(agent, lease_seconds=5)
    world.clock.advance(seconds=6)
    await world.kernel.tasks.reconciler.tick(0)
    claim = await world.claim(agent)
    await world.admin.post(f"{path}/fail", json={"epoch": claim["epoch"], "error": {"message": "no"}})
    await world.admin.post(f"{path}/retry")
    await world.admin.post(f"{path}/approve")
    claim = await world.claim(agent)
    await world.admin.post(f"{path}/complete", json={"epoch": claim["epoch"], "result": 1})
    return task_id


@requirement("activity.shape", "activity.event-fields")
async def test_the_trail_tells_the_task_its_routing_and_its_outcome(world: World) -> None:
    agent = await world.register("ann")
    task_id = await world.do(agent)
    found = await trail(world, task_id)
    assert set(found) == {
        *("task_id", "task", "status", "provenance_id", "agent_name", "capability", "routing", "provider"),
        *("outcome_class", "learning_eligible", "reports", "events", "next_cursor"),
    }
    only_there = {"agent_name": "ann", "waits_for": []}
    assert found["task"] | only_there == await world.task(task_id)
    assert (found["task_id"], found["status"], found["agent_name"]) == (task_id, "completed", "ann")
    assert (found["capability"], found["outcome_class"], found["learning_eligible"]) == ("echo", "success", True)
    assert (found["provenance_id"], found["routing"]["agent_id"]) == (found["task"]["provenance_id"], agent)
    for event in found["events"]:
        assert set(event) == {
            *("event_id", "timestamp", "event_type", "component", "message", "metadata", "duration_ms"),
            *("provenance_id", "parent_provenance_id"),
        }
        assert event["metadata"]["task_id"] == task_id


@requirement("activity.nullable-until-event")
async def test_what_no_event_has_said_yet_is_null(world: World) -> None:
    await world.register()
    found = await trail(world, await world.submit(required_capabilities=[]))
    assert [found[name] for name in ("provider", "outcome_class", "learning_eligible")] == [None] * 3
    assert (found["capability"], found["reports"]) == (None, [])
    assert found["provenance_id"] is not None


@requirement("activity.nullable-until-event")
async def test_a_retried_task_has_no_outcome_until_it_ends_again(world: World) -> None:
    agent = await world.register()
    task_id = await world.do(agent, ok=False)
    found = await trail(world, task_id)
    assert (found["outcome_class"], found["learning_eligible"]) == ("agent_failure", True)
    await world.admin.post(f"/api/v1/tasks/{task_id}/retry")
    found = await trail(world, task_id)
    assert (found["status"], found["outcome_class"], found["learning_eligible"]) == ("queued", None, None)


@requirement("activity.nullable-until-event")
async def test_a_denied_task_has_no_agent_and_no_routing(world: World) -> None:
    body = {"type": "echo", "input": 1, "required_capabilities": ["paint"]}
    denied = (await world.admin.post("/api/v1/tasks", json=body)).json()["error"]
    found = await trail(world, denied["details"]["task_id"])
    assert (found["status"], found["agent_name"], found["routing"]) == ("failed", None, None)
    assert (found["outcome_class"], found["learning_eligible"]) == ("routing_failed", False)


@requirement("activity.root-and-parents", "activity.event-types", "activity.limit-keeps-oldest")
async def test_every_event_of_an_eventful_task_reaches_the_one_root(world: World) -> None:
    task_id = await eventful(world)
    found = await trail(world, task_id)
    events = found["events"]
    assert [event["event_type"] for event in events] == [
        *("prompt_received", "routing_decision", "approval_requested", "approval_given", "task_queued"),
        *("task_started", "task_requeued", "task_started", "task_failed", "learning_updated"),
        *("routing_decision", "approval_requested", "approval_given", "task_queued"),
        *("task_started", "task_completed", "learning_updated"),
    ]
    assert {event["event_type"] for event in events} <= OF_TASKS
    seen: set[str] = set()
    for i, event in enumerate(events):
        parent = event["parent_provenance_id"]
        assert parent is None if i == 0 else parent in seen, event
        seen.add(event["provenance_id"])
    assert len(seen) == len(events)
    assert found["provenance_id"] == events[0]["provenance_id"]
    assert [e["timestamp"] for e in events] == sorted(e["timestamp"] for e in events)


@requirement("activity.event-types")
def test_the_types_of_a_tasks_events_are_the_listed_ones() -> None:
    assert {
        *("prompt_received", "routing_decision", "dispatch_denied", "approval_requested", "approval_given"),
        *(
            "approval_refused",
            "task_queued",
            "task_started",
            "tool_called",
            "tool_denied",
            "memory_read",
            "memory_written",
        ),
        *(
            "llm_called",
            "model_chosen",
            "answer_graded",
            "task_completed",
            "task_failed",
            "task_aborted",
            "task_cancelled",
            "task_requeued",
            "task_graded",
            "tasks_archived",
            "task_waiting",
            "task_resumed",
            "signal_received",
            "step_started",
            "step_completed",
            "step_failed",
        ),
        *("learning_updated", "learning_skipped", "report_written", "sentinel_alert"),
    } == OF_TASKS


@requirement("activity.limit-keeps-oldest", "activity.limit-range")
async def test_a_limit_keeps_the_oldest_and_the_summary_of_all(world: World) -> None:
    task_id = await world.do(await world.register())
    everything = (await trail(world, task_id))["events"]
    for limit in (1, 3, 500):
        found = await trail(world, task_id, limit=limit)
        assert found["events"] == everything[:limit]
        assert (found["outcome_class"], found["agent_name"]) == ("success", "ann")


@requirement("activity.limit-range", "activity.limit-checked-before-404")
@pytest.mark.parametrize("limit", ["0", "501", "-1", "ten", "1.5", "", "99999999999999999999"])
async def test_a_limit_out_of_range_is_400_also_for_an_unknown_task(world: World, limit: str) -> None:
    await world.register()
    for task_id in (await world.submit(), "nobody", "a" * 300):
        answer = await world.admin.get(f"/api/v1/tasks/{task_id}/activity", params={"limit": limit})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


async def flood(world: World, task_id: str) -> None:
    """Six hundred events after those that the task has."""
    head = (await world.events(task_id))[-1]["event_id"]
    event = Sql(
        """insert into events (event_id, tenant, task_id, happened_at, event_type, component, message, metadata)
        values (:event_id, 'default', :task_id, 1, 'tool_called', 'test', '', '{}')"""
    )
    rows = [{"event_id": f"{head}-{i:04}", "task_id": task_id} for i in range(600)]
    await world.kernel.infra.db.write(lambda tx: tx.many(event, rows))


@requirement("activity.limit-range")
async def test_without_a_limit_there_are_two_hundred_events(world: World) -> None:
    await world.register()
    task_id = await world.submit()
    await flood(world, task_id)
    assert len((await trail(world, task_id))["events"]) == 200
    assert len((await trail(world, task_id, limit=500))["events"]) == 500


@requirement("activity.limit-keeps-oldest", "activity.nullable-until-event")
async def test_the_outcome_is_told_however_many_events_came_before_it(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    await flood(world, task_id)
    claim = await world.claim(agent)
    await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json={"epoch": claim["epoch"], "result": 1})
    found = await trail(world, task_id, limit=3)
    assert (found["status"], found["outcome_class"], found["agent_name"]) == ("completed", "success", "ann")
    assert [e["event_type"] for e in found["events"]] == ["prompt_received", "routing_decision", "task_queued"]


@requirement("activity.pages")
@pytest.mark.parametrize("limit", [67, 200, 500])
async def test_a_cursor_leads_through_all_events_oldest_first(world: World, limit: int) -> None:
    await world.register()
    task_id = await world.submit()
    await flood(world, task_id)
    found = await trail(world, task_id, limit=limit)
    seen = [event["event_id"] for event in found["events"]]
    while cursor := found["next_cursor"]:
        found = await trail(world, task_id, limit=limit, cursor=cursor)
        assert (found["status"], found["agent_name"]) == ("queued", "ann")
        seen += [event["event_id"] for event in found["events"]]
    assert seen == sorted(set(seen))
    assert len(seen) == 603


@requirement("activity.pages")
async def test_the_last_page_has_no_cursor_even_when_it_is_full(world: World) -> None:
    task_id = await world.do(await world.register())
    total = len((await trail(world, task_id))["events"])
    assert (await trail(world, task_id, limit=total))["next_cursor"] is None
    assert (await trail(world, task_id, limit=total - 1))["next_cursor"]


@requirement("activity.pages")
@pytest.mark.parametrize("cursor", ["", "x", "zzz", "WzFd", "WyIAIl0", "e30"])
async def test_a_cursor_of_somebody_elses_making_is_400(world: World, cursor: str) -> None:
    await world.register()
    path = f"/api/v1/tasks/{await world.submit()}/activity"
    answer = await world.admin.get(path, params={"cursor": cursor})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert "The cursor was not issued by this service" in answer.json()["error"]["message"]


@requirement("activity.unknown-404")
@pytest.mark.parametrize("task_id", ["nobody", "a" * 256, "%00", "..%2Fx"])
async def test_an_id_with_neither_task_nor_events_is_404(world: World, task_id: str) -> None:
    answer = await world.admin.get(f"/api/v1/tasks/{task_id}/activity")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")
    assert (await world.admin.get("/api/v1/tasks//activity")).status_code == 404


@requirement("activity.exact-id-match")
async def test_only_events_of_exactly_this_id_are_shown(world: World) -> None:
    await world.register()
    ids = ["task", "Task", "task1", "a task", "tas%", "tas_"]
    for task_id in ids:
        await world.submit(id=task_id)
    await world.clients["OTHER"].post("/api/v1/registry/agents", json={"name": "his", "capabilities": ["echo"]})
    body = {"id": "task", "type": "echo", "input": 1, "required_capabilities": ["echo"]}
    assert (await world.clients["OTHER"].post("/api/v1/tasks", json=body)).status_code == 202
    for task_id in ids:
        found = await trail(world, task_id.replace("%", "%25"))
        assert [event["metadata"]["task_id"] for event in found["events"]] == [task_id] * 3


@requirement("activity.read-only")
async def test_reading_changes_nothing(world: World) -> None:
    task_id = await eventful(world)
    before = await trail(world, task_id), await world.task(task_id)
    for _ in range(3):
        await trail(world, task_id, limit=2)
    assert (await trail(world, task_id), await world.task(task_id)) == before


UNREADABLE = [
    "update events set metadata = '{' where event_type = 'routing_decision'",
    "update tasks set metadata = 'no'",
    "update tasks set required_capabilities = '{}'",
    "alter table events rename to elsewhere",
    "alter table tasks rename to elsewhere",
]


@requirement("activity.unreadable-500")
@pytest.mark.parametrize("damage", UNREADABLE)
async def test_a_trail_that_cannot_be_read_is_500_and_shows_no_exception(world: World, damage: str) -> None:
    await world.register()
    task_id = await world.submit()
    await world.kernel.infra.db.write(lambda tx: tx.run(Sql(damage)))
    answer = await world.admin.get(f"/api/v1/tasks/{task_id}/activity")
    assert answer.status_code == 500, answer.text
    assert not {"Traceback", "select", "sqlite", "psycopg"} & set(answer.text.split())
    assert answer.json()["error"]["request_id"]


@requirement("activity.reports")
async def test_the_trail_carries_the_reports_that_name_the_task(make_world: MakeWorld, tmp_path: Path) -> None:
    world: World = await make_world(SERVICE_MEMORY="1")
    await world.register()
    task_id, other = await world.submit(), await world.submit()
    assert (await trail(world, task_id))["reports"] == []
    folder = tmp_path / "vault" / "Reports"
    folder.mkdir()
    (folder / "week.md").write_text(f"---\ntask_id: {task_id}\nagent: ann\n---\n# The week\n\nAll is well.\n")
    report = (await trail(world, task_id))["reports"][0]
    assert (report["path"], report["task_id"], report["agent_name"]) == ("Reports/week.md", task_id, "ann")
    assert (report["title"], report["summary"]) == ("The week", "All is well.")
    assert (await trail(world, other))["reports"] == []


@requirement("activity.reports")
async def test_reports_belong_to_the_vaults_tenant_alone(make_world: MakeWorld, tmp_path: Path) -> None:
    world: World = await make_world(SERVICE_MEMORY="1")
    theirs = world.clients["OTHER"]
    await theirs.post("/api/v1/registry/agents", json={"name": "his", "capabilities": ["echo"]})
    body = {"id": "theirs", "type": "echo", "input": 1, "required_capabilities": ["echo"]}
    assert (await theirs.post("/api/v1/tasks", json=body)).status_code == 202
    folder = tmp_path / "vault" / "Reports"
    folder.mkdir()
    (folder / "week.md").write_text("---\ntask_id: theirs\n---\nSecret.\n")
    assert (await theirs.get("/api/v1/tasks/theirs/activity")).json()["reports"] == []


@requirement("activity.unreadable-500")
async def test_without_the_vault_no_trail_claims_that_there_are_no_reports(
    make_world: MakeWorld, tmp_path: Path
) -> None:
    world: World = await make_world(SERVICE_MEMORY="1")
    await world.register()
    task_id = await world.submit()
    (tmp_path / "vault").rename(tmp_path / "elsewhere")
    answer = await world.admin.get(f"/api/v1/tasks/{task_id}/activity")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "INTERNAL_ERROR")
    assert str(tmp_path) not in answer.text
    assert (await world.admin.get("/api/v1/tasks/nobody/activity")).status_code == 404


@requirement("activity.log-is-fail-closed")
async def test_without_the_run_log_no_agent_is_changed(world: World) -> None:
    agent = await world.register()
    path = f"/api/v1/registry/agents/{agent}"
    before = (await world.admin.get(path)).json()
    world.runlog.broken = True
    calls: list[tuple[str, str, dict[str, Any] | None]] = [
        ("PATCH", path, {"accuracy_score": 1}),
        ("POST", f"{path}/suspend", {"reason": "ill"}),
        ("POST", f"{path}/clear-violations", {"override_tier": "auto", "rationale": "r"}),
        ("PUT", f"/api/v1/trust/{agent}", {"score": 1}),
        ("PUT", "/api/v1/trust/hebbian/weights", {"agent1": "a", "agent2": "b", "delta": 1}),
        ("POST", "/api/v1/registry/agents", {"name": "new"}),
    ]
    for method, url, body in calls:
        answer = await world.admin.request(method, url, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "SERVICE_UNAVAILABLE"), url
    world.runlog.broken = False
    assert (await world.admin.get(path)).json() == before
    assert (await world.admin.get("/api/v1/registry/agents")).json()["total"] == 1
