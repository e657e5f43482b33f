"""Webhook events that are derived from run log events, triggered over the API."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.runlog import RunLogEvent
from stentor.domains.webhooks import model, payloads
from tests.conftest import MakeWorld
from tests.domains.webhooks.conftest import Hooks
from tests.domains.webhooks.receiver import Receiver
from tests.requirements import requirement


def run_log_event(kind: str, **metadata: Any) -> RunLogEvent:
    return RunLogEvent("e", "default", "t", "a", None, 0, kind, "c", "m", None, metadata)


async def delivered_data(hooks: Hooks, name: str, count: int = 1) -> list[dict[str, Any]]:
    await hooks.receiver.wait_for_calls(count)
    return [call.payload["data"] for call in hooks.receiver.calls if call.event == name]


@requirement("webhooks.event-names", "webhooks.only-subscribed-events")
async def test_task_states_are_delivered_as_task_events(hooks: Hooks) -> None:
    await hooks.subscribe("task.*")
    world, agent = hooks.world, await hooks.world.register()
    failed = await world.do(agent, ok=False)
    cancelled = await world.submit()
    await world.admin.post(f"/api/v1/tasks/{cancelled}/cancel")
    await world.register("boss", capabilities=["judge"], trust_tier="human")
    rejected = await world.submit(required_capabilities=["judge"])
    await world.admin.post(f"/api/v1/tasks/{rejected}/reject", json={"reason": "no"})
    denied = await world.admin.post("/api/v1/tasks", json={"type": "x", "input": 1, "required_capabilities": ["none"]})
    assert denied.status_code == 422
    await hooks.receiver.wait_for_calls(10)
    by_task: dict[str, list[str]] = {}
    for call in hooks.receiver.calls:
        by_task.setdefault(call.payload["data"]["task_id"], []).append(call.event)
    assert by_task.pop(failed) == ["task.submitted", "task.started", "task.failed"]
    assert by_task.pop(cancelled) == ["task.submitted", "task.cancelled"]
    assert by_task.pop(rejected) == ["task.submitted", "task.pending_approval", "task.aborted"]
    assert list(by_task.values()) == [["task.submitted", "task.failed"]]
    # Only the events of one task are in order.
    by_id = {item["task_id"]: item for item in await delivered_data(hooks, "task.failed")}
    first, (second,) = by_id.pop(failed), by_id.values()
    assert (first["status"], first["error"]["message"]) == ("failed", "no")
    assert (second["outcome_class"], second["error"]["code"]) == ("routing_failed", "ROUTING_CAPABILITY_UNAVAILABLE")


@requirement("webhooks.event-names")
async def test_agent_status_changes_are_delivered_in_order(hooks: Hooks) -> None:
    await hooks.subscribe("agent.*")
    world, agent = hooks.world, await hooks.world.register()
    base = f"/api/v1/registry/agents/{agent}"
    await world.admin.post(f"{base}/suspend", json={"reason": "slow"})
    await world.admin.post(f"{base}/activate")
    for _ in range(3):
        response = await world.admin.post(f"{base}/authorize", json={"tool": "rm", "operation": "delete"})
        assert response.status_code in (200, 403), response.text
    cleared = await world.admin.post(
        f"{base}/clear-violations", json={"override_tier": "monitored", "rationale": "a false alarm"}
    )
    assert cleared.status_code == 200, cleared.text
    calls = await hooks.receiver.wait_for_calls(4)
    names = ["agent.registered", "agent.suspended", "agent.quarantined", "agent.cleared"]
    assert [call.event for call in calls] == names
    assert {call.payload["data"]["agent_id"] for call in calls} == {agent}
    assert calls[1].payload["data"]["reason"] == "slow"


@requirement("webhooks.event-names")
async def test_trust_event_is_delivered_only_when_the_level_changes(hooks: Hooks) -> None:
    await hooks.subscribe("trust.level_changed")
    agent = await hooks.world.register()
    for score in (0.75, 0.8, 0.2):
        await hooks.world.admin.put(f"/api/v1/trust/{agent}", json={"score": score})
    changes = await delivered_data(hooks, "trust.level_changed", 2)
    assert [(d["previous_level"], d["level"]) for d in changes] == [(None, "HIGH"), ("HIGH", "UNTRUSTED")]
    await hooks.world.do(agent, ok=False)
    await hooks.world.admin.put(f"/api/v1/trust/{agent}", json={"score": 0.49})
    await hooks.world.do(agent)
    changes = await delivered_data(hooks, "trust.level_changed", 4)
    assert [(d["previous_level"], d["level"]) for d in changes[2:]] == [("UNTRUSTED", "LOW"), ("LOW", "MEDIUM")]


@requirement("webhooks.event-names")
async def test_memory_write_is_delivered(make_world: MakeWorld, receiver: Receiver) -> None:
    hooks = Hooks(await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1", SERVICE_MEMORY="1"), receiver)
    await hooks.subscribe("memory.*")
    body = {"operation": "write", "document": {"path": "a.md", "content": "one\n"}}
    response = await hooks.world.admin.post("/api/v1/memory/write", json=body)
    assert response.status_code == 200, response.text
    (written,) = await delivered_data(hooks, "memory.written")
    assert (written["path"], written["status"], written["operation"]) == ("a.md", "success", "write")


@requirement("webhooks.event-names")
@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        (run_log_event("memory_written", status="conflict"), "memory.conflict"),
        (run_log_event("sentinel_alert"), "sentinel.alert"),
        (run_log_event("task_aborted"), "task.aborted"),
        (run_log_event("update_approved"), "update.approved"),
        (run_log_event("rollback_completed"), "rollback.completed"),
        (run_log_event("agent_status_changed", to="active"), None),
        (run_log_event("task_failed", outcome_class="routing_failed"), None),
        (run_log_event("trust_changed", level="LOW", previous_level="LOW"), None),
        (run_log_event("learning_updated"), None),
    ],
)
def test_run_log_events_map_to_webhook_event_names(recorded: RunLogEvent, name: str | None) -> None:
    assert payloads.event_name(recorded) == name


def test_each_event_except_ping_has_a_run_log_source() -> None:
    names = {name for name in payloads.EVENT_NAMES.values() if isinstance(name, str)}
    status_changes: list[dict[str, Any]] = [{"to": "suspended"}, {"to": "quarantined"}, {"override_tier": "human"}]
    names |= {
        payloads.event_name(run_log_event("agent_status_changed", **metadata)) or "" for metadata in status_changes
    }
    names |= {payloads.event_name(run_log_event("memory_written", status=s)) or "" for s in ("success", "conflict")}
    names |= {
        payloads.event_name(run_log_event("trust_changed", level="LOW")) or "",
        payloads.event_name(run_log_event("task_failed")) or "",
    }
    assert names == set(model.EVENTS) - {model.PING}
