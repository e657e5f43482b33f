"""The routes: subscribe, read, change, test, rotate, the log, replays."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stentor.core.db import Sql, Tx
from stentor.domains.webhooks import model
from tests.domains.webhooks.conftest import Hooks
from tests.requirements import requirement

FIELDS = {"id", "url", "events", "secret", "enabled", "created_at"}


@requirement("webhooks.subscribe-answers-201", "webhooks.secrets")
async def test_subscribing_answers_the_decided_fields_and_the_secret_is_never_seen_again(hooks: Hooks) -> None:
    made = await hooks.subscribe("task.completed", "task.completed", "agent.*")
    assert set(made) == FIELDS
    assert made["url"] == hooks.receiver.url
    assert made["events"] == ["task.completed", "agent.*"]
    assert made["enabled"] is True
    assert made["secret"].startswith("whsec_")
    other = await hooks.subscribe("*")
    assert other["secret"] != made["secret"]
    bare = made["secret"].removeprefix("whsec_")
    for path in ("", f"/{made['id']}", f"/{made['id']}/deliveries"):
        assert bare not in (await hooks.ask("GET", path)).text

    def everything(tx: Tx) -> str:
        tables = ("webhook_subscriptions", "events", "idempotency_keys")
        return str([tx.rows(Sql(f"select * from {name}")) for name in tables])

    assert bare not in await hooks.world.kernel.infra.db.read(everything)


@requirement("webhooks.event-names")
@pytest.mark.parametrize("name", ["task.done", "Task.completed", "tas*", "task.", "*.*", "task.completed ", "memory"])
async def test_an_unknown_event_is_refused_with_the_list_of_all(hooks: Hooks, name: str) -> None:
    answer = await hooks.ask("POST", json={"url": hooks.receiver.url, "events": ["task.completed", name]})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "INVALID_REQUEST"
    assert error["details"]["unknown"] == [name]
    assert error["details"]["events"] == list(model.EVENTS)


@requirement("webhooks.event-names")
async def test_every_event_can_be_subscribed_to(hooks: Hooks) -> None:
    made = await hooks.subscribe(*model.EVENTS)
    assert made["events"] == list(model.EVENTS)
    assert (await hooks.do("PATCH", f"/{made['id']}", json={"events": ["*"]}))["events"] == ["*"]


@requirement("webhooks.idempotent", "http.idempotency-governance-and-webhooks")
async def test_the_same_idempotency_key_answers_the_same_with_the_secret(hooks: Hooks) -> None:
    key = {"Idempotency-Key": "k1"}
    first = await hooks.subscribe("task.completed", headers=key)
    assert await hooks.subscribe("task.completed", headers=key) == first
    other = await hooks.ask("POST", json={"url": hooks.receiver.url, "events": ["*"]}, headers=key)
    assert other.status_code == 422
    assert (await hooks.do("GET"))["total"] == 1


@requirement("webhooks.manage")
async def test_webhooks_are_listed_changed_and_deleted(hooks: Hooks) -> None:
    one, two = await hooks.subscribe("task.completed"), await hooks.subscribe("*")
    listed = await hooks.do("GET")
    assert [w["id"] for w in listed["webhooks"]] == [one["id"], two["id"]]
    changes = {"url": hooks.receiver.url + "/new", "events": ["agent.registered"], "description": "for the team"}
    changed = await hooks.do("PATCH", f"/{one['id']}", json=changes)
    assert {name: changed[name] for name in changes} == changes
    assert await hooks.do("GET", f"/{one['id']}") == changed
    await hooks.do("DELETE", f"/{two['id']}")
    await hooks.world.register()
    (call,) = await hooks.receiver.got(1)
    assert (call.path, call.event) == ("/hook/new", "agent.registered")
    assert (await hooks.ask("GET", f"/{two['id']}")).status_code == 404
    assert (await hooks.ask("DELETE", f"/{two['id']}")).status_code == 404
    assert (await hooks.ask("PATCH", f"/{one['id']}", json={})).status_code == 400


@requirement("webhooks.manage", "webhooks.replay-since")
async def test_a_disabled_webhook_gets_nothing_and_what_it_missed_is_replayed(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.registered")
    since = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    path = f"/{made['id']}"
    off = await hooks.do("PATCH", path, json={"enabled": False})
    assert (off["enabled"], off["disabled_reason"]) == (False, "Disabled by admin.")
    agent = await hooks.world.register()
    assert await hooks.deliveries(made["id"]) == []
    assert (await hooks.ask("POST", f"{path}/replay", json={"since": since})).status_code == 409
    on = await hooks.do("PATCH", path, json={"enabled": True})
    assert (on["enabled"], on["disabled_reason"]) == (True, None)
    assert await hooks.do("POST", f"{path}/replay", 202, json={"since": since}) == {"queued": 1, "next_since": None}
    (call,) = await hooks.receiver.got(1)
    assert call.payload["data"]["agent_id"] == agent
    await hooks.until(made["id"], status="delivered")
    again = await hooks.do("POST", f"{path}/replay", 202, json={"since": since})
    assert again["queued"] == 0, "it was delivered"
    every = await hooks.do("POST", f"{path}/replay", 202, json={"since": since, "scope": "all"})
    assert every["queued"] == 1
    assert (await hooks.receiver.got(2))[1].id == call.id
    backwards = {"since": since, "until": "2020-01-01T00:00:00Z"}
    assert (await hooks.ask("POST", f"{path}/replay", json=backwards)).status_code == 400


@requirement("webhooks.delivery-log-and-replay")
async def test_a_delivery_is_replayed_from_the_log_under_the_same_message_id(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.registered")
    await hooks.world.register()
    done = await hooks.until(made["id"], status="delivered")
    again = await hooks.do("POST", f"/{made['id']}/deliveries/{done['id']}/replay", 202)
    assert (again["replay_of"], again["message_id"], again["status"]) == (done["id"], done["message_id"], "waiting")
    first, second = await hooks.receiver.got(2)
    assert (first.id, first.body) == (second.id, second.body)


async def test_a_delivery_that_has_not_ended_is_not_replayed(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.registered")
    hooks.receiver.statuses = [500]
    await hooks.world.register()
    waiting = await hooks.until(made["id"], status="waiting", attempts=1)
    answer = await hooks.ask("POST", f"/{made['id']}/deliveries/{waiting['id']}/replay")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CONFLICT")


@requirement("webhooks.delivery-log-and-replay")
async def test_the_log_is_filtered_and_paged_newest_first(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.*")
    agents = [await hooks.world.register(f"agent-{n}") for n in range(5)]
    await hooks.world.admin.post(f"/api/v1/registry/agents/{agents[0]}/suspend", json={"reason": "slow"})
    await hooks.receiver.got(6)
    await hooks.until(made["id"], status="delivered")
    whole = await hooks.deliveries(made["id"])
    assert [d["event"] for d in whole] == ["agent.suspended", *["agent.registered"] * 5]
    assert len(await hooks.deliveries(made["id"], event="agent.suspended")) == 1
    assert await hooks.deliveries(made["id"], status="failed") == []
    assert await hooks.deliveries(made["id"], created_after="2100-01-01T00:00:00Z") == []
    seen: list[str] = []
    params: dict[str, Any] = {"limit": 4}
    for _ in range(2):
        page = await hooks.do("GET", f"/{made['id']}/deliveries", params=params)
        seen += [d["id"] for d in page["deliveries"]]
        params["cursor"] = page["next_cursor"]
    assert page["next_cursor"] is None
    assert seen == [d["id"] for d in whole]
    for wrong in ({"event": "nothing"}, {"status": "lost"}, {"cursor": "x"}, {"limit": 0}):
        assert (await hooks.ask("GET", f"/{made['id']}/deliveries", params=wrong)).status_code == 400


@requirement("webhooks.manage")
async def test_a_test_pings_at_once_and_answers_how_it_went(hooks: Hooks) -> None:
    made = await hooks.subscribe("task.completed")
    told = await hooks.do("POST", f"/{made['id']}/test")
    assert (told["status"], told["status_code"], told["event"]) == ("delivered", 200, "webhook.ping")
    assert told["log"][0]["response"] == "thanks"
    payload = hooks.receiver.calls[0].verified(made["secret"])
    assert payload["type"] == "webhook.ping"
    assert payload["data"] == {"webhook_id": made["id"], "by": "admin"}
    hooks.receiver.statuses = [500]
    await hooks.do("PATCH", f"/{made['id']}", json={"enabled": False})
    failed = await hooks.do("POST", f"/{made['id']}/test")
    assert (failed["status"], failed["status_code"], failed["attempts"]) == ("failed", 500, 1)
    await hooks.later(100)
    assert len(hooks.receiver.calls) == 2, "a ping is not retried"


@requirement("webhooks.needs-admin")
async def test_a_key_without_admin_reaches_no_route(hooks: Hooks) -> None:
    made = await hooks.subscribe()
    path = f"/{made['id']}"
    routes = [("POST", ""), ("GET", ""), ("GET", path), ("PATCH", path), ("DELETE", path), ("POST", f"{path}/test")]
    routes += [("POST", f"{path}/rotate"), ("GET", f"{path}/deliveries"), ("POST", f"{path}/replay")]
    for client in ("READER", "WRITER", "BOB"):
        for method, where in routes:
            answer = await hooks.ask(method, where, client=client)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN"), (client, method, where)
    assert (await hooks.do("GET"))["total"] == 1


@requirement("webhooks.tenants")
async def test_another_tenant_sees_neither_the_webhook_nor_its_events(hooks: Hooks) -> None:
    made = await hooks.subscribe("*")
    theirs = await hooks.subscribe("*", url=hooks.receiver.url + "/theirs", client="OTHER")
    assert (await hooks.do("GET", client="OTHER"))["total"] == 1
    for method, tail in (("GET", ""), ("DELETE", ""), ("POST", "/test"), ("GET", "/deliveries")):
        foreign = await hooks.ask(method, f"/{made['id']}{tail}", client="OTHER")
        assert foreign.status_code == 404
    await hooks.world.register()
    await hooks.receiver.got(1)
    assert await hooks.deliveries(made["id"]) != []
    none = await hooks.do("GET", f"/{theirs['id']}/deliveries", client="OTHER")
    assert none["deliveries"] == []


async def test_a_tenant_has_a_hundred_webhooks_at_most(hooks: Hooks) -> None:
    for _ in range(100):
        await hooks.subscribe("task.completed")
    answer = await hooks.ask("POST", json={"url": hooks.receiver.url, "events": ["*"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CONFLICT")
