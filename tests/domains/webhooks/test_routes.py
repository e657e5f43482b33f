"""The webhook routes: create, read, change, test, delivery log and replay."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stentor.core.db import Sql, Tx
from stentor.domains.webhooks import delivery_log, model
from tests.domains.webhooks.conftest import Hooks
from tests.requirements import requirement

FIELDS = {"id", "url", "events", "secret", "enabled", "created_at"}


@requirement("webhooks.subscribe-answers-201", "webhooks.secrets")
async def test_subscribe_returns_the_secret_once_and_never_again(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("task.completed", "task.completed", "agent.*")
    assert set(webhook) == FIELDS
    assert webhook["url"] == hooks.receiver.url
    assert webhook["events"] == ["task.completed", "agent.*"]
    assert webhook["enabled"] is True
    assert webhook["secret"].startswith("whsec_")
    other = await hooks.subscribe("*")
    assert other["secret"] != webhook["secret"]
    secret = webhook["secret"].removeprefix("whsec_")
    for path in ("", f"/{webhook['id']}", f"/{webhook['id']}/deliveries"):
        assert secret not in (await hooks.request("GET", path)).text

    def all_rows(tx: Tx) -> str:
        tables = ("webhook_subscriptions", "events", "idempotency_keys")
        return str([tx.rows(Sql(f"select * from {name}")) for name in tables])

    assert secret not in await hooks.world.kernel.infra.db.read(all_rows)


@requirement("webhooks.event-names")
@pytest.mark.parametrize("name", ["task.done", "Task.completed", "tas*", "task.", "*.*", "task.completed ", "memory"])
async def test_unknown_event_returns_400_with_the_known_events(hooks: Hooks, name: str) -> None:
    response = await hooks.request("POST", json={"url": hooks.receiver.url, "events": ["task.completed", name]})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "INVALID_REQUEST"
    assert error["details"]["unknown"] == [name]
    assert error["details"]["events"] == list(model.EVENTS)


@requirement("webhooks.event-names")
async def test_every_event_is_subscribable(hooks: Hooks) -> None:
    webhook = await hooks.subscribe(*model.EVENTS)
    assert webhook["events"] == list(model.EVENTS)
    assert (await hooks.request_json("PATCH", f"/{webhook['id']}", json={"events": ["*"]}))["events"] == ["*"]


@requirement("webhooks.idempotent", "http.idempotency-governance-and-webhooks")
async def test_idempotency_key_replays_the_response_with_the_secret(hooks: Hooks) -> None:
    key = {"Idempotency-Key": "k1"}
    first = await hooks.subscribe("task.completed", headers=key)
    assert await hooks.subscribe("task.completed", headers=key) == first
    other = await hooks.request("POST", json={"url": hooks.receiver.url, "events": ["*"]}, headers=key)
    assert other.status_code == 422
    assert (await hooks.request_json("GET"))["total"] == 1


@requirement("webhooks.manage")
async def test_webhooks_can_be_listed_changed_and_deleted(hooks: Hooks) -> None:
    first, second = await hooks.subscribe("task.completed"), await hooks.subscribe("*")
    listed = await hooks.request_json("GET")
    assert [w["id"] for w in listed["webhooks"]] == [first["id"], second["id"]]
    changes = {"url": hooks.receiver.url + "/new", "events": ["agent.registered"], "description": "for the team"}
    changed = await hooks.request_json("PATCH", f"/{first['id']}", json=changes)
    assert {name: changed[name] for name in changes} == changes
    assert await hooks.request_json("GET", f"/{first['id']}") == changed
    await hooks.request_json("DELETE", f"/{second['id']}")
    await hooks.world.register()
    (call,) = await hooks.receiver.wait_for_calls(1)
    assert (call.path, call.event) == ("/hook/new", "agent.registered")
    assert (await hooks.request("GET", f"/{second['id']}")).status_code == 404
    assert (await hooks.request("DELETE", f"/{second['id']}")).status_code == 404
    assert (await hooks.request("PATCH", f"/{first['id']}", json={})).status_code == 400


@requirement("webhooks.manage")
async def test_the_list_counts_failed_deliveries_and_names_the_newest(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    (row,) = (await hooks.request_json("GET"))["webhooks"]
    assert (row["failed"], row["last_failure"]) == (0, None)
    hooks.receiver.statuses = [500, 503]
    pings = [await hooks.request_json("POST", f"/{webhook['id']}/test") for _ in range(3)]
    assert [ping["status"] for ping in pings] == ["failed", "failed", "delivered"]
    (row,) = (await hooks.request_json("GET"))["webhooks"]
    assert row["failed"] == 2
    last = row["last_failure"]
    assert (last["delivery_id"], last["status_code"]) == (pings[1]["id"], 503)
    assert last["created_at"] == pings[1]["created_at"]


@requirement("webhooks.manage", "webhooks.replay-since")
async def test_missed_events_of_a_disabled_webhook_can_be_replayed(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    since = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    path = f"/{webhook['id']}"
    disabled = await hooks.request_json("PATCH", path, json={"enabled": False})
    assert (disabled["enabled"], disabled["disabled_reason"]) == (False, "Disabled by admin.")
    agent = await hooks.world.register()
    assert await hooks.deliveries(webhook["id"]) == []
    assert (await hooks.request("POST", f"{path}/replay", json={"since": since})).status_code == 409
    enabled = await hooks.request_json("PATCH", path, json={"enabled": True})
    assert (enabled["enabled"], enabled["disabled_reason"]) == (True, None)
    assert await hooks.request_json("POST", f"{path}/replay", 202, json={"since": since}) == {
        "queued": 1,
        "next_since": None,
    }
    (call,) = await hooks.receiver.wait_for_calls(1)
    assert call.payload["data"]["agent_id"] == agent
    await hooks.wait_for_delivery(webhook["id"], status="delivered")
    repeated = await hooks.request_json("POST", f"{path}/replay", 202, json={"since": since})
    assert repeated["queued"] == 0, "delivered events are not replayed"
    replay_all = await hooks.request_json("POST", f"{path}/replay", 202, json={"since": since, "scope": "all"})
    assert replay_all["queued"] == 1
    assert (await hooks.receiver.wait_for_calls(2))[1].id == call.id
    backwards = {"since": since, "until": "2020-01-01T00:00:00Z"}
    assert (await hooks.request("POST", f"{path}/replay", json=backwards)).status_code == 400


@requirement("webhooks.replay-since")
async def test_a_continued_replay_misses_no_event_that_was_written_late(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_log, "MAX_REPLAYED", 1)
    monkeypatch.setattr(delivery_log, "REPLAY_BATCH", 1)
    webhook = await hooks.subscribe("agent.registered")
    path = f"/{webhook['id']}"
    await hooks.request_json("PATCH", path, json={"enabled": False})
    since = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    # The id of an event is drawn before its transaction begins, which may have to wait for its turn to write.
    hooks.world.clock.advance(seconds=2)
    agents = {await hooks.world.register("late")}
    hooks.world.clock.advance(seconds=-1)
    agents |= {await hooks.world.register(name) for name in ("ann", "bob")}
    hooks.world.clock.advance(seconds=2)
    await hooks.request_json("PATCH", path, json={"enabled": True})
    while since is not None:
        since = (await hooks.request_json("POST", f"{path}/replay", 202, json={"since": since}))["next_since"]
    calls = await hooks.receiver.wait_for_calls(3)
    assert {call.payload["data"]["agent_id"] for call in calls} == agents


@requirement("webhooks.delivery-log-and-replay")
async def test_replayed_delivery_has_the_same_message_id_and_body(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    await hooks.world.register()
    delivered = await hooks.wait_for_delivery(webhook["id"], status="delivered")
    replay = await hooks.request_json("POST", f"/{webhook['id']}/deliveries/{delivered['id']}/replay", 202)
    assert (replay["replay_of"], replay["message_id"], replay["status"]) == (
        delivered["id"],
        delivered["message_id"],
        "waiting",
    )
    first, second = await hooks.receiver.wait_for_calls(2)
    assert (first.id, first.body) == (second.id, second.body)


async def test_replay_of_a_waiting_delivery_returns_409(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    hooks.receiver.statuses = [500]
    await hooks.world.register()
    waiting = await hooks.wait_for_delivery(webhook["id"], status="waiting", attempts=1)
    response = await hooks.request("POST", f"/{webhook['id']}/deliveries/{waiting['id']}/replay")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "CONFLICT")


@requirement("webhooks.delivery-log-and-replay")
async def test_delivery_log_has_filters_and_pages_newest_first(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.*")
    agents = [await hooks.world.register(f"agent-{n}") for n in range(5)]
    await hooks.world.admin.post(f"/api/v1/registry/agents/{agents[0]}/suspend", json={"reason": "slow"})
    await hooks.receiver.wait_for_calls(6)
    await hooks.wait_for_delivery(webhook["id"], status="delivered")
    deliveries = await hooks.deliveries(webhook["id"])
    assert [d["event"] for d in deliveries] == ["agent.suspended", *["agent.registered"] * 5]
    assert len(await hooks.deliveries(webhook["id"], event="agent.suspended")) == 1
    assert await hooks.deliveries(webhook["id"], status="failed") == []
    assert await hooks.deliveries(webhook["id"], created_after="2100-01-01T00:00:00Z") == []
    paged_ids: list[str] = []
    params: dict[str, Any] = {"limit": 4}
    for _ in range(2):
        page = await hooks.request_json("GET", f"/{webhook['id']}/deliveries", params=params)
        paged_ids += [d["id"] for d in page["deliveries"]]
        params["cursor"] = page["next_cursor"]
    assert page["next_cursor"] is None
    assert paged_ids == [d["id"] for d in deliveries]
    for invalid in ({"event": "nothing"}, {"status": "lost"}, {"cursor": "x"}, {"limit": 0}):
        assert (await hooks.request("GET", f"/{webhook['id']}/deliveries", params=invalid)).status_code == 400


@requirement("webhooks.manage")
async def test_test_route_sends_a_ping_and_returns_the_delivery(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("task.completed")
    delivery = await hooks.request_json("POST", f"/{webhook['id']}/test")
    assert (delivery["status"], delivery["status_code"], delivery["event"]) == ("delivered", 200, "webhook.ping")
    assert delivery["log"][0]["response"] == "thanks"
    payload = hooks.receiver.calls[0].verify(webhook["secret"])
    assert payload["type"] == "webhook.ping"
    assert payload["data"] == {"webhook_id": webhook["id"], "by": "admin"}
    hooks.receiver.statuses = [500]
    await hooks.request_json("PATCH", f"/{webhook['id']}", json={"enabled": False})
    failed = await hooks.request_json("POST", f"/{webhook['id']}/test")
    assert (failed["status"], failed["status_code"], failed["attempts"]) == ("failed", 500, 1)
    await hooks.advance_clock(100)
    assert len(hooks.receiver.calls) == 2, "a ping is not retried"


@requirement("webhooks.needs-admin")
async def test_routes_without_admin_permission_return_403(hooks: Hooks) -> None:
    webhook = await hooks.subscribe()
    path = f"/{webhook['id']}"
    routes = [("POST", ""), ("GET", ""), ("GET", path), ("PATCH", path), ("DELETE", path), ("POST", f"{path}/test")]
    routes += [("POST", f"{path}/rotate"), ("GET", f"{path}/deliveries"), ("POST", f"{path}/replay")]
    for client in ("READER", "WRITER", "BOB"):
        for method, route in routes:
            response = await hooks.request(method, route, client=client)
            assert (response.status_code, response.json()["error"]["code"]) == (403, "FORBIDDEN"), (
                client,
                method,
                route,
            )
    assert (await hooks.request_json("GET"))["total"] == 1


@requirement("webhooks.tenants")
async def test_another_tenant_sees_neither_webhook_nor_events(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("*")
    theirs = await hooks.subscribe("*", url=hooks.receiver.url + "/theirs", client="OTHER")
    assert (await hooks.request_json("GET", client="OTHER"))["total"] == 1
    for method, tail in (("GET", ""), ("DELETE", ""), ("POST", "/test"), ("GET", "/deliveries")):
        foreign = await hooks.request(method, f"/{webhook['id']}{tail}", client="OTHER")
        assert foreign.status_code == 404
    await hooks.world.register()
    await hooks.receiver.wait_for_calls(1)
    assert await hooks.deliveries(webhook["id"]) != []
    log = await hooks.request_json("GET", f"/{theirs['id']}/deliveries", client="OTHER")
    assert log["deliveries"] == []


async def test_tenant_is_limited_to_100_webhooks(hooks: Hooks) -> None:
    for _ in range(100):
        await hooks.subscribe("task.completed")
    response = await hooks.request("POST", json={"url": hooks.receiver.url, "events": ["*"]})
    assert (response.status_code, response.json()["error"]["code"]) == (409, "CONFLICT")
