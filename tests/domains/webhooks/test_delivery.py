"""What a receiver gets: each event once it was committed, signed, in order, again until it was taken."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from standardwebhooks import WebhookVerificationError

from stentor.domains.webhooks import model
from tests.domains.webhooks.conftest import Hooks
from tests.requirements import requirement


@requirement("webhooks.payload", "webhooks.task-completed-data", "webhooks.signed-headers")
async def test_a_completed_task_is_told_with_its_result_and_a_signature_that_the_official_verifier_takes(
    hooks: Hooks,
) -> None:
    secret = (await hooks.subscribe("task.completed"))["secret"]
    agent = await hooks.world.register()
    task = await hooks.world.do(agent, result={"answer": [1, "zwei"]})
    (call,) = await hooks.receiver.got(1)
    payload = call.verified(secret)
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
        call.verified("whsec_" + "A" * 43 + "=")


@requirement("webhooks.only-subscribed-events")
async def test_a_subscription_gets_the_events_it_names_and_no_other(hooks: Hooks) -> None:
    await hooks.subscribe("task.started", "task.failed", url=hooks.receiver.url + "/some")
    await hooks.subscribe("task.*", url=hooks.receiver.url + "/kind")
    await hooks.subscribe("agent.registered", url=hooks.receiver.url + "/agents")
    agent = await hooks.world.register()
    await hooks.world.do(agent)
    await hooks.world.do(agent, ok=False)
    calls = await hooks.receiver.got(9)
    await asyncio.sleep(0.05)
    found = {path: [c.event for c in calls if c.path.endswith(path)] for path in ("some", "kind", "agents")}
    assert sorted(found["some"]) == ["task.failed", "task.started", "task.started"]
    kind = ["task.completed", "task.failed", *["task.started"] * 2, *["task.submitted"] * 2]
    assert sorted(found["kind"]) == kind
    assert found["agents"] == ["agent.registered"]


@requirement("webhooks.retries", "webhooks.success-is-2xx", "webhooks.delivery-log-and-replay")
async def test_a_failed_delivery_is_tried_again_under_the_same_id_until_it_is_taken(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.registered")
    hooks.receiver.statuses = [500, 302, 204]
    await hooks.world.register()
    waiting = await hooks.until(made["id"], status="waiting", attempts=1)
    assert waiting["status_code"] == 500
    await hooks.later(4.9)
    assert len(hooks.receiver.calls) == 1
    await hooks.later(0.7)
    await hooks.until(made["id"], status="waiting", attempts=2)
    await hooks.later(5 * 60 * 1.11)
    done = await hooks.until(made["id"], status="delivered", attempts=3)
    assert {call.id for call in hooks.receiver.calls} == {done["message_id"]}
    assert len({call.headers["webhook-timestamp"] for call in hooks.receiver.calls}) == 3
    shown = await hooks.do("GET", f"/{made['id']}/deliveries/{done['id']}")
    assert [(a["attempt"], a["status_code"]) for a in shown["log"]] == [(1, 500), (2, 302), (3, 204)]
    assert shown["log"][0]["response"] == "thanks"
    assert "not followed" in shown["log"][1]["error"]


@requirement("webhooks.order")
async def test_a_later_event_of_a_task_waits_for_the_earlier_one_and_other_tasks_do_not(hooks: Hooks) -> None:
    await hooks.subscribe("task.submitted", "task.started", "task.completed")
    agent = await hooks.world.register()
    hooks.receiver.statuses = [500]
    slow = await hooks.world.submit()
    await hooks.receiver.got(1)
    claim = await hooks.world.claim(agent)
    done = await hooks.world.admin.post(f"/api/v1/tasks/{slow}/complete", json={"epoch": claim["epoch"], "result": 1})
    assert done.status_code == 200
    other = await hooks.world.do(agent)
    calls = await hooks.receiver.got(4)
    assert [c.payload["data"]["task_id"] for c in calls] == [slow, other, other, other]
    await hooks.later(6)
    calls = await hooks.receiver.got(7)
    names = ["task.submitted", "task.started", "task.completed"]
    assert [c.event for c in calls if c.payload["data"]["task_id"] == slow] == ["task.submitted", *names]
    assert [c.event for c in calls if c.payload["data"]["task_id"] == other] == names


@requirement("webhooks.secrets")
async def test_while_a_secret_is_rotated_both_sign_and_afterwards_only_the_new_one(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.registered")
    turned = await hooks.do("POST", f"/{made['id']}/rotate", json={"overlap_seconds": 60})
    assert turned["secret"] != made["secret"]
    await hooks.world.register("one")
    (both,) = await hooks.receiver.got(1)
    assert both.verified(made["secret"]) == both.verified(turned["secret"])
    assert both.headers["webhook-signature"].count("v1,") == 2
    await hooks.later(61)
    await hooks.world.register("two")
    new = (await hooks.receiver.got(2))[1]
    assert new.headers["webhook-signature"].count("v1,") == 1
    assert new.verified(turned["secret"])["event"] == "agent.registered"
    with pytest.raises(WebhookVerificationError):
        new.verified(made["secret"])


@requirement("webhooks.one-commit")
async def test_an_event_that_cannot_be_recorded_is_not_delivered_either(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.registered")
    hooks.world.runlog.broken = True
    refused = await hooks.world.admin.post("/api/v1/registry/agents", json={"name": "ann"})
    assert refused.status_code == 503
    hooks.world.runlog.broken = False
    assert await hooks.deliveries(made["id"]) == []


@requirement("webhooks.large-fields")
async def test_a_result_that_is_too_large_is_left_out_and_named(hooks: Hooks) -> None:
    await hooks.subscribe("task.completed")
    task = await hooks.world.do(await hooks.world.register(), result="x" * 300_000)
    (call,) = await hooks.receiver.got(1)
    data = call.payload["data"]
    assert data["result"] is None
    assert data["truncated"] == ["result"]
    assert data["task_id"] == task
    assert len(json.dumps(data)) < 2_000


@requirement("webhooks.event-names")
def test_names_patterns_and_what_they_stand_for() -> None:
    assert model.expand_events(["*"]) == sorted(model.EVENTS)
    assert model.expand_events(["update.*", "update.approved"]) == sorted(
        n for n in model.EVENTS if n.startswith("update.")
    )
    assert len(model.EVENTS) == 23
