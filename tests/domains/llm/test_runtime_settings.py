"""Budgets, groups and fallbacks that admins set while the service runs: in force at once, and never by an agent."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from stentor.core.db import Database, Sql
from stentor.core.errors import BudgetExceeded
from stentor.domains.llm.calls.call_guard import LlmCaller
from tests.conftest import World
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import Gate, asking, chat
from tests.domains.llm.test_usage import SAID
from tests.domains.llm.upstream import Upstream
from tests.requirements import requirement

BUDGETS, ROUTES = "/api/v1/llm/budgets", "/api/v1/llm/routes"
EVENTS = Sql("select message, metadata, agent_id from events where event_type = :type order by event_id")


async def statuses_of_six_at_once(upstream: Upstream, clients: list[httpx.AsyncClient]) -> list[int]:
    """Two chats of each of three clients at the same time, of which four are refused before the others go on."""
    upstream.mood = moods.held(upstream)
    upstream.go.clear()
    body = asking(options={"max_tokens": 390})
    work = [asyncio.create_task(client.post("/api/v1/llm/chat", json=body)) for client in clients * 2]
    done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 4:
        done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED, timeout=200)
        await asyncio.sleep(0)
    upstream.go.set()
    return sorted([(await one).status_code for one in work])


async def limit(world: World, what: str, amount: float, status: int = 200, key: str = "ADMIN") -> httpx.Response:
    """Set a budget; `what` is its id, such as `key:admin:tokens:day`."""
    kind, subject, unit, period = what.split(":")
    body = {"kind": kind, "subject": subject, "unit": unit, "period": period, "limit": amount}
    answer = await world.clients[key].post(BUDGETS, json=body)
    assert answer.status_code == status, answer.text
    return answer


async def budgets(world: World, key: str = "ADMIN") -> list[dict[str, Any]]:
    answer = await world.clients[key].get(BUDGETS)
    assert answer.status_code == 200, answer.text
    assert answer.json()["total"] == len(answer.json()["budgets"])
    return list(answer.json()["budgets"])


async def group(world: World, name: str, *models: str, status: int = 200, kind: str = "group") -> httpx.Response:
    answer = await world.admin.post(ROUTES, json={"kind": kind, "name": name, "models": list(models)})
    assert answer.status_code == status, answer.text
    return answer


async def statuses(world: World, *keys: str) -> list[int]:
    return [(await world.clients[key].post("/api/v1/llm/chat", json=asking())).status_code for key in keys]


@requirement("llm.budgets-at-runtime")
async def test_a_budget_is_in_force_at_once_until_it_is_removed(world: World) -> None:
    assert await statuses(world, "ADMIN") == [200]  # 18 tokens, which count against the budget that is set now
    await limit(world, "key:admin:tokens:day", 18)
    assert await statuses(world, "ADMIN", "WRITER") == [429, 200]
    await limit(world, "key:admin:tokens:day", 36)
    assert await statuses(world, "ADMIN", "ADMIN") == [200, 429]
    (budget,) = await budgets(world)
    assert (budget["limit"], budget["source"], budget["set_by"]) == (36, "api", "admin")
    assert budget["spending"] == [{"subject": "admin", "spent": 36, "unpriced_calls": 0}]
    removed = await world.admin.delete(f"{BUDGETS}/key:admin:tokens:day")
    assert (removed.status_code, removed.json()) == (200, {"removed": True})
    assert await statuses(world, "ADMIN") == [200]
    assert await budgets(world) == []
    assert (await world.admin.delete(f"{BUDGETS}/key:admin:tokens:day")).status_code == 404


@requirement("llm.budgets-at-runtime")
async def test_an_agent_has_a_budget_and_a_budget_for_nobody_is_refused(world: World) -> None:
    agent = await world.register("ann")
    await limit(world, f"agent:{agent}:tokens:day", 15)
    gateway = world.kernel.llm.gateway
    ann, bob = (LlmCaller("default", "admin", agent_id=agent_id) for agent_id in (agent, "another"))
    await gateway.chat(ann, SAID)
    with pytest.raises(BudgetExceeded, match=agent):
        await gateway.chat(ann, SAID)
    await gateway.chat(bob, SAID)
    await limit(world, "agent:nobody:usd:day", 1, status=404)
    await limit(world, "tenant:other:usd:day", 1, status=400)
    await limit(world, f"agent:{agent}:tokens:day", 1.5, status=400)
    await limit(world, f"agent:{agent}:tokens:day", -1, status=400)
    await limit(world, f"agent:{agent}:tokens:week", 1, status=400)


@requirement("llm.budgets-at-runtime")
async def test_all_calls_of_a_tenant_share_its_budget_and_no_call_of_another(world: World) -> None:
    await limit(world, "tenant:default:tokens:month", 30)
    assert await statuses(world, "ADMIN", "WRITER", "READER", "SECOND") == [200, 200, 403, 429]
    assert await statuses(world, "OTHER") == [200]
    (budget,) = await budgets(world)
    assert budget["spending"] == [{"subject": "default", "spent": 36, "unpriced_calls": 0}]
    await limit(world, "key:*:tokens:day", 0)
    assert await statuses(world, "OTHER") == [200]
    assert await budgets(world, "OTHER") == []
    assert (await world.clients["OTHER"].delete(f"{BUDGETS}/key:*:tokens:day")).status_code == 404


@requirement("llm.budgets")
async def test_the_settings_limit_a_tenant_too(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="tenant:default:tokens/day=30,tenant:acme:tokens/day=1")
    assert await statuses(world, "ADMIN", "WRITER", "SECOND", "OTHER") == [200, 200, 429, 200]
    assert [budget["subject"] for budget in await budgets(world)] == ["default"]


@requirement("llm.budgets-at-runtime")
async def test_calls_at_the_same_time_do_not_pass_the_budget_of_the_tenant_together(
    world: World, upstream: Upstream
) -> None:
    await limit(world, "tenant:default:tokens:day", 400)
    await limit(world, "key:*:tokens:day", 400)
    clients = [world.clients[key] for key in ("ADMIN", "WRITER", "SECOND")]
    assert await statuses_of_six_at_once(upstream, clients) == [200, 200, 429, 429, 429, 429]


@requirement("llm.budgets-at-runtime")
async def test_a_budget_set_here_never_raises_a_limit_of_the_settings_or_of_a_key(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:admin:tokens/day=18")
    made = await world.admin.post("/api/v1/keys", json={"name": "ci", "role": "viewer", "budgets": ["tokens/day=5"]})
    assert made.status_code == 201
    await limit(world, "key:admin:tokens:day", 1_000_000)
    assert await statuses(world, "ADMIN", "ADMIN") == [200, 429]
    assert [(one["source"], one["limit"]) for one in await budgets(world)] == [
        ("settings", 18),
        ("key", 5),
        ("api", 1_000_000),
    ]
    assert (await world.admin.delete(f"{BUDGETS}/key:admin:tokens:day")).status_code == 200
    configured = await world.admin.delete(f"{BUDGETS}/key:admin:tokens:day")
    of_key = await world.admin.delete(f"{BUDGETS}/key:ci:tokens:day")
    assert (configured.status_code, of_key.status_code) == (409, 409)
    assert "SERVICE_LLM_BUDGETS" in configured.text
    assert "change the key" in of_key.text
    await world.admin.post("/api/v1/keys/ci/revoke")
    assert [one["source"] for one in await budgets(world)] == ["settings"]


@requirement("llm.settings-not-by-agents")
async def test_no_agent_changes_a_budget_or_a_group_whatever_its_permissions(world: World, db: Database) -> None:
    await limit(world, "key:boss:tokens:day", 0)
    boss = world.clients["BOSS"]  # the role agent with the permission admin
    for key in ("BOSS", "BOB", "WRITER"):
        await limit(world, "key:boss:tokens:day", 1_000_000, status=403, key=key)
        removed = await world.clients[key].delete(f"{BUDGETS}/key:boss:tokens:day")
        assert removed.status_code == 403, removed.text
    assert (await boss.post(ROUTES, json={"kind": "group", "name": "fast", "models": ["openai/x"]})).status_code == 403
    assert (await boss.delete(f"{ROUTES}/group:fast")).status_code == 403
    assert await statuses(world, "BOSS") == [429]
    assert len(await db.read(lambda tx: tx.rows(EVENTS, type="budget_changed"))) == 1


@requirement("llm.budgets-at-runtime")
async def test_other_keys_see_only_what_limits_themselves(world: World) -> None:
    agent = await world.register("ann")
    for what in ("key:*:tokens:day", "key:reader:usd:day", "key:writer:usd:day", "tenant:default:usd:day"):
        await limit(world, what, 100)
    await limit(world, f"agent:{agent}:usd:day", 100)
    await chat(world)
    seen = await budgets(world, "READER")
    assert [(one["subject"], one["unit"]) for one in seen] == [("*", "tokens"), ("reader", "usd")]
    assert {row["subject"] for one in seen for row in one["spending"]} == {"reader"}
    assert len(await budgets(world)) == 5


@requirement("llm.settings-everywhere")
async def test_changes_reach_other_processes_and_survive_a_restart(make_llm: Gate) -> None:
    first, second = await make_llm(), await make_llm()
    await limit(first, "key:admin:tokens:day", 0)
    await group(first, "fast", "openai/sea-large")
    await second.kernel.views.refresh(0)
    assert await statuses(second, "ADMIN", "WRITER") == [429, 200]
    assert (await second.clients["WRITER"].post("/api/v1/llm/chat", json=asking("fast"))).status_code == 200
    late = await second.kernel.infra.db.read(second.kernel.llm.runtime_settings.poll_query(0))
    await first.admin.delete(f"{BUDGETS}/key:admin:tokens:day")
    await first.admin.delete(f"{ROUTES}/group:fast")
    await second.kernel.views.refresh(0)
    late()  # a poll that read before the removal must not bring it back
    assert await statuses(second, "ADMIN") == [200]
    assert (await second.admin.post("/api/v1/llm/chat", json=asking("fast"))).status_code == 404
    await limit(first, "key:admin:tokens:day", 0)
    assert await statuses(await make_llm(), "ADMIN") == [429]


@requirement("llm.settings-everywhere")
async def test_two_admins_at_once_lose_no_change_of_each_other(make_llm: Gate) -> None:
    first, second = await make_llm(), await make_llm()
    async with asyncio.TaskGroup() as work:
        for number in range(10):
            work.create_task(limit(first if number % 2 else second, f"key:key-{number}:usd:day", number))
    await first.kernel.views.refresh(0)
    assert {one["subject"] for one in await budgets(first)} == {f"key-{number}" for number in range(10)}


@requirement("llm.settings-recorded")
async def test_each_change_is_in_the_audit_once_with_who_made_it(world: World, db: Database) -> None:
    agent = await world.register("ann")
    for amount in (20, 20, 25, 0.0001):
        await limit(world, f"agent:{agent}:usd:month", amount)
    await world.admin.delete(f"{BUDGETS}/agent:{agent}:usd:month")
    await group(world, "fast", "openai/sea-large")
    await world.admin.delete(f"{ROUTES}/group:fast")
    rows = await db.read(lambda tx: tx.rows(EVENTS, type="budget_changed"))
    assert [str(row[0]).removeprefix("Budget of agent ann ") for row in rows] == [
        "set to $20.00 a month.",
        "set to $25.00 a month.",
        "set to $0.0001 a month.",
        "($0.0001 a month) removed.",
    ]
    assert {row[2] for row in rows} == {agent}
    changes = (await world.admin.get("/api/v1/audit", params={"category": "changes"})).json()["events"]
    found = [(event["event_type"], event["metadata"]["by"]) for event in changes if "budget" in event["event_type"]]
    assert found == [("budget_changed", "admin")] * 4
    assert sum(event["event_type"] == "model_route_changed" for event in changes) == 2


@requirement("llm.budgets-unpriced")
async def test_a_budget_in_dollars_says_how_many_calls_it_does_not_count(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_PRICES="openai/sea-large=1000/2000")
    agent = await world.register("ann")
    gateway = world.kernel.llm.gateway
    await chat(world)
    await gateway.chat(LlmCaller("default", "writer", agent_id=agent), SAID)
    for _ in range(2):
        assert (await chat(world, "anthropic/sea-small")).status_code == 200
    for what in ("key:admin:usd:day", "key:admin:tokens:day", "tenant:default:usd:month", f"agent:{agent}:usd:day"):
        await limit(world, what, 100_000)
    unpriced = {(one["kind"], one["unit"]): one["spending"][0]["unpriced_calls"] for one in await budgets(world)}
    assert unpriced == {("key", "usd"): 2, ("key", "tokens"): 0, ("tenant", "usd"): 2, ("agent", "usd"): 0}
    world.clock.advance(days=1)
    assert [one["spending"][0]["unpriced_calls"] for one in await budgets(world) if one["period"] == "day"] == [0, 0, 0]


@requirement("llm.routes-at-runtime")
async def test_a_group_and_fallbacks_are_in_force_at_once_until_they_are_removed(
    world: World, upstream: Upstream
) -> None:
    assert (await chat(world, "fast")).status_code == 404
    await group(world, "fast", "openai/sea-large*2", "anthropic/sea-small")
    for _ in range(3):
        assert (await chat(world, "fast")).status_code == 200
    assert [one["path"] for one in upstream.asked].count("/v1/chat/completions") == 2
    assert (await chat(world, "auto:fast")).status_code == 200
    assert (await world.clients["OTHER"].post("/api/v1/llm/chat", json=asking("fast"))).status_code == 404
    await world.admin.delete(f"{ROUTES}/group:fast")
    assert (await chat(world, "fast")).status_code == 404
    await group(world, "anthropic/sea-small", "openai/sea-large", kind="fallbacks")
    upstream.mood = moods.status(500)
    asked = len(upstream.asked)
    assert (await chat(world, "anthropic/sea-small")).status_code == 502
    assert len(upstream.asked) == asked + 2
    await world.admin.delete(f"{ROUTES}/fallbacks:anthropic%2Fsea-small")
    assert (await chat(world, "anthropic/sea-small")).status_code == 502
    assert len(upstream.asked) == asked + 3


@requirement("llm.routes-at-runtime")
async def test_routes_of_the_settings_stay_and_are_told_apart(make_llm: Gate) -> None:
    world = await make_llm(
        SERVICE_LLM_GROUPS="fast=openai/sea-large*3|anthropic/sea-small", SERVICE_LLM_FALLBACKS="*=openai/sea-large"
    )
    await group(world, "fast", "openai/other", status=409)
    await group(world, "*", "openai/other", kind="fallbacks", status=409)
    assert (await world.admin.delete(f"{ROUTES}/group:fast")).status_code == 409
    await group(world, "fast", "openai/other", kind="fallbacks")
    listed = (await world.clients["READER"].get(ROUTES)).json()["routes"]
    assert [(one["kind"], one["name"], one["models"], one["source"]) for one in listed] == [
        ("group", "fast", ["openai/sea-large*3", "anthropic/sea-small"], "settings"),
        ("fallbacks", "*", ["openai/sea-large"], "settings"),
        ("fallbacks", "fast", ["openai/other"], "api"),
    ]
    config = (await world.admin.get("/api/v1/llm/config")).json()["data"]
    assert (config["groups"], set(config["fallbacks"])) == (["fast"], {"*", "fast"})


@requirement("llm.routes-at-runtime")
@pytest.mark.parametrize(
    ("kind", "name", "models"),
    [
        ("group", "fast", ["nobody/x"]),
        ("group", "fast", ["openai/a*0"]),
        ("group", "fast", ["openai/a*²"]),
        ("group", "fast", ["openai/a", "openai/a*2"]),
        ("group", "fast", ["agent:summarize"]),
        ("group", "fast", ["auto"]),
        ("group", "fast", []),
        ("group", "openai/fast", ["openai/a"]),
        ("group", "agent:fast", ["openai/a"]),
        ("group", "auto:fast", ["openai/a"]),
        ("fallbacks", "openai/a", ["openai/b*3"]),
        ("fallbacks", "nobody/x", ["openai/b"]),
        ("other", "fast", ["openai/a"]),
    ],
)
async def test_a_route_that_could_never_work_is_refused(world: World, kind: str, name: str, models: list[str]) -> None:
    unknown = [model for model in (*models, name) if model.startswith("nobody")]
    await group(world, name, *models, kind=kind, status=404 if unknown else 400)
    assert (await world.admin.get(ROUTES)).json()["total"] == 0


async def test_there_are_not_more_budgets_than_a_row_holds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor.domains.llm.runtime_settings.model.MAX_BUDGETS", 1)
    monkeypatch.setattr("stentor.domains.llm.runtime_settings.model.MAX_ROUTES", 1)
    await limit(world, "key:a:usd:day", 1)
    await limit(world, "key:a:usd:day", 2)
    await limit(world, "key:b:usd:day", 1, status=409)
    await group(world, "fast", "openai/a")
    await group(world, "fast", "openai/b")
    await group(world, "slow", "openai/b", status=409)
