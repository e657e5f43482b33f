"""Deliveries: payload, signature, subscribed events, retries, order and truncation."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from standardwebhooks import WebhookVerificationError

from stentor.core.security.sealing import Sealer
from stentor.domains.webhooks import model
from tests.domains.webhooks.conftest import Hooks
from tests.requirements import requirement


@requirement("webhooks.payload", "webhooks.task-completed-data", "webhooks.signed-headers")
async def test_completed_task_delivers_its_result_with_a_valid_signature(
    hooks: Hooks,
) -> None:
    secret = (await hooks.subscribe("task.completed"))["secret"]
    agent = await hooks.world.register()
    task = await hooks.world.do(agent, result={"answer": [1, "zwei"]})
    (call,) = await hooks.receiver.wait_for_calls(1)
    payload = call.verify(secret)
    assert set(payload) == {"event", "type", "timestamp", "data"}
    assert payload["event"] == payload["type"] == "task.completed"
    ended = (await hooks.world.task(task))["completion_time"]
    assert payload["timestamp"] == ended
    data = payload["data"]
    assert (data["task_id"], data["status"], data["result"]) == (task, "completed", {"answer": [1, "zwei"]})
    assert data["agent_id"] == agent
    assert abs(int(call.headers["webhook-timestamp"]) - time.time()) < 60
    assert call.headers["content-type"] == "application/json"
    with pytest.raises(WebhookVerificationError):
        call.verify("whsec_" + "A" * 43 + "=")


@requirement("webhooks.only-subscribed-events")
async def test_subscription_receives_only_its_named_events(hooks: Hooks) -> None:
    await hooks.subscribe("task.started", "task.failed", url=hooks.receiver.url + "/some")
    await hooks.subscribe("task.*", url=hooks.receiver.url + "/kind")
    await hooks.subscribe("agent.registered", url=hooks.receiver.url + "/agents")
    agent = await hooks.world.register()
    await hooks.world.do(agent)
    await hooks.world.do(agent, ok=False)
    calls = await hooks.receiver.wait_for_calls(10)
    events_by_path = {path: [c.event for c in calls if c.path.endswith(path)] for path in ("some", "kind", "agents")}
    assert sorted(events_by_path["some"]) == ["task.failed", "task.started", "task.started"]
    expected_kind_events = ["task.completed", "task.failed", *["task.started"] * 2, *["task.submitted"] * 2]
    assert sorted(events_by_path["kind"]) == expected_kind_events
    assert events_by_path["agents"] == ["agent.registered"]


@requirement("webhooks.retries", "webhooks.success-is-2xx", "webhooks.delivery-log-and-replay")
async def test_failed_delivery_is_retried_with_the_same_message_id(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    hooks.receiver.statuses = [500, 302, 204]
    await hooks.world.register()
    waiting = await hooks.wait_for_delivery(webhook["id"], status="waiting", attempts=1)
    assert waiting["status_code"] == 500
    await hooks.advance_clock(4.9)
    assert len(hooks.receiver.calls) == 1
    await hooks.advance_clock(0.7)
    await hooks.wait_for_delivery(webhook["id"], status="waiting", attempts=2)
    await hooks.advance_clock(5 * 60 * 1.11)
    delivered = await hooks.wait_for_delivery(webhook["id"], status="delivered", attempts=3)
    assert {call.id for call in hooks.receiver.calls} == {delivered["message_id"]}
    assert len({call.headers["webhook-timestamp"] for call in hooks.receiver.calls}) == 3
    shown = await hooks.request_json("GET", f"/{webhook['id']}/deliveries/{delivered['id']}")
    assert [(a["attempt"], a["status_code"]) for a in shown["log"]] == [(1, 500), (2, 302), (3, 204)]
    assert shown["log"][0]["response"] == "thanks"
    assert "not followed" in shown["log"][1]["error"]


@requirement("webhooks.order")
async def test_failed_delivery_blocks_later_events_of_its_task_only(hooks: Hooks) -> None:
    await hooks.subscribe("task.submitted", "task.started", "task.completed")
    agent = await hooks.world.register()
    hooks.receiver.statuses = [500]
    blocked_task = await hooks.world.submit()
    await hooks.receiver.wait_for_calls(1)
    claim = await hooks.world.claim(agent)
    response = await hooks.world.admin.post(
        f"/api/v1/tasks/{blocked_task}/complete", json={"epoch": claim["epoch"], "result": 1}
    )
    assert response.status_code == 200
    other_task = await hooks.world.do(agent)
    calls = await hooks.receiver.wait_for_calls(4)
    assert [c.payload["data"]["task_id"] for c in calls] == [blocked_task, other_task, other_task, other_task]
    await hooks.advance_clock(6)
    calls = await hooks.receiver.wait_for_calls(7)
    names = ["task.submitted", "task.started", "task.completed"]
    assert [c.event for c in calls if c.payload["data"]["task_id"] == blocked_task] == ["task.submitted", *names]
    assert [c.event for c in calls if c.payload["data"]["task_id"] == other_task] == names


@requirement("webhooks.secrets")
async def test_rotation_signs_with_both_secrets_until_the_overlap_ends(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    rotated = await hooks.request_json("POST", f"/{webhook['id']}/rotate", json={"overlap_seconds": 60})
    assert rotated["secret"] != webhook["secret"]
    await hooks.world.register("one")
    (during_overlap,) = await hooks.receiver.wait_for_calls(1)
    assert during_overlap.verify(webhook["secret"]) == during_overlap.verify(rotated["secret"])
    assert during_overlap.headers["webhook-signature"].count("v1,") == 2
    await hooks.advance_clock(61)
    await hooks.world.register("two")
    after_overlap = (await hooks.receiver.wait_for_calls(2))[1]
    assert after_overlap.headers["webhook-signature"].count("v1,") == 1
    assert after_overlap.verify(rotated["secret"])["event"] == "agent.registered"
    with pytest.raises(WebhookVerificationError):
        after_overlap.verify(webhook["secret"])


@requirement("webhooks.secrets")
async def test_a_further_rotation_leaves_the_overlap_of_the_ones_before(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    secrets = [webhook["secret"]]
    for overlap in (60, 30):
        rotated = await hooks.request_json("POST", f"/{webhook['id']}/rotate", json={"overlap_seconds": overlap})
        secrets.append(rotated["secret"])
    for seconds, signing in ((0, secrets), (31, [secrets[0], secrets[2]]), (30, secrets[2:])):
        await hooks.advance_clock(seconds)
        await hooks.world.register(f"after-{seconds}")
        call = (await hooks.receiver.wait_for_calls(3 - len(signing) + 1))[-1]
        assert call.headers["webhook-signature"].count("v1,") == len(signing)
        assert all(call.verify(secret)["event"] == "agent.registered" for secret in signing)


@requirement("webhooks.secrets")
async def test_as_many_old_secrets_sign_as_may_and_no_overlap_ends_them_all(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    path = f"/api/v1/webhooks/{webhook['id']}/rotate"
    answers = [await hooks.world.admin.post(path) for _ in range(model.MAX_OLD_SECRETS + 1)]
    assert [answer.status_code for answer in answers] == [200] * model.MAX_OLD_SECRETS + [409]
    rotated = await hooks.request_json("POST", f"/{webhook['id']}/rotate", json={"overlap_seconds": 0})
    assert rotated["old_secret_until"] is None
    await hooks.world.register()
    (call,) = await hooks.receiver.wait_for_calls(1)
    assert call.headers["webhook-signature"].count("v1,") == 1
    assert call.verify(rotated["secret"])["event"] == "agent.registered"


@requirement("webhooks.secrets")
async def test_a_rotation_after_a_change_of_the_master_key_lets_deliveries_go_on(hooks: Hooks, tmp_path: Path) -> None:
    webhook = await hooks.subscribe("agent.registered")
    webhooks = hooks.world.kernel.webhooks
    webhooks.service._sealer = webhooks.dispatcher._sealer = Sealer(tmp_path, "another master key")
    rotated = await hooks.request_json("POST", f"/{webhook['id']}/rotate")
    await hooks.world.register()
    (call,) = await hooks.receiver.wait_for_calls(1)
    assert call.headers["webhook-signature"].count("v1,") == 1
    assert call.verify(rotated["secret"])["event"] == "agent.registered"


@requirement("webhooks.one-commit")
async def test_unrecorded_event_is_not_delivered(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    hooks.world.runlog.broken = True
    refused = await hooks.world.admin.post("/api/v1/registry/agents", json={"name": "ann"})
    assert refused.status_code == 503
    hooks.world.runlog.broken = False
    assert await hooks.deliveries(webhook["id"]) == []


@requirement("webhooks.large-fields")
async def test_oversized_result_is_omitted_and_listed_as_truncated(hooks: Hooks) -> None:
    await hooks.subscribe("task.completed")
    task = await hooks.world.do(await hooks.world.register(), result="x" * 300_000)
    (call,) = await hooks.receiver.wait_for_calls(1)
    data = call.payload["data"]
    assert data["result"] is None
    assert data["truncated"] == ["result"]
    assert data["task_id"] == task
    assert len(json.dumps(data)) < 2_000


@requirement("webhooks.event-names")
def test_event_patterns_expand_to_event_names() -> None:
    assert model.expand_events(["*"]) == sorted(model.EVENTS)
    assert model.expand_events(["update.*", "update.approved"]) == sorted(
        n for n in model.EVENTS if n.startswith("update.")
    )
    assert len(model.EVENTS) == 25
