"""Teams: the model calls of keys and people with the same team count to its budgets together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from stentor.core.clock import SECOND
from stentor.core.db import Database, Sql
from stentor.core.errors import BudgetExceeded, StartRefused
from stentor.core.settings.installation import group_teams
from stentor.domains.llm.calls.call_guard import LlmCaller
from stentor.testing import FixedClock
from tests.conftest import World
from tests.domains.keys.test_keys import client_of, make
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import Gate, asking
from tests.domains.llm.test_runtime_settings import BUDGETS, budgets, limit, statuses_of_six_at_once
from tests.domains.llm.test_usage import SAID
from tests.domains.llm.upstream import Upstream
from tests.domains.people.test_people import session, sign_in
from tests.identity_provider import Account, IdentityProvider, identity_provider
from tests.requirements import requirement

TOKENS_OF_A_CALL = 18
SPENT = Sql("select kind, subject, tokens from llm_spent where kind = 'team' order by subject")
EVENTS = Sql("select message, metadata from events where event_type = 'key_changed' order by event_id")


async def member(world: World, name: str, team: str, **fields: Any) -> httpx.AsyncClient:
    made = await make(world, name, team=team, **fields)
    assert made["team"] == team
    return client_of(world, made["key"])


async def ask(client: httpx.AsyncClient) -> int:
    return (await client.post("/api/v1/llm/chat", json=asking())).status_code


@pytest.fixture
def provider(clock: FixedClock) -> Iterator[IdentityProvider]:
    with identity_provider(lambda: clock.now() / SECOND) as made:
        yield made


@requirement("llm.teams")
async def test_calls_are_listed_by_the_team_that_their_key_had(world: World) -> None:
    ann, eve = await member(world, "ann", "research"), await member(world, "eve", "sales")
    assert [await ask(one) for one in (ann, eve)] == [200, 200]
    await world.admin.patch("/api/v1/keys/ann", json={"team": "sales"})
    assert await ask(ann) == 200

    async def listed(team: str) -> list[tuple[str, str]]:
        answer = await world.admin.get("/api/v1/llm/calls", params={"team": team})
        return [(call["key"], call["team"]) for call in answer.json()["calls"]]

    assert await listed("research") == [("ann", "research")]
    assert sorted(await listed("sales")) == [("ann", "sales"), ("eve", "sales")]
    assert await listed("nobody") == []


@requirement("llm.teams")
async def test_the_keys_of_a_team_spend_one_budget_and_other_keys_do_not(world: World, db: Database) -> None:
    await limit(world, "team:research:tokens:day", 2 * TOKENS_OF_A_CALL)
    ann, ben = await member(world, "ann", "research"), await member(world, "ben", "research")
    eve, free = await member(world, "eve", "sales"), await member(world, "free", "")
    assert [await ask(one) for one in (ann, ben)] == [200, 200]
    refused = await ben.post("/api/v1/llm/chat", json=asking())
    assert refused.status_code == 429
    assert "The daily token budget of team 'research' is used up. It resets in" in refused.text
    assert int(refused.headers["Retry-After"]) > 0
    assert [await ask(one) for one in (ann, eve, free)] == [429, 200, 200]
    assert await ask(world.admin) == 200  # a key of the environment has no team
    (budget,) = await budgets(world)
    assert (budget["kind"], budget["subject"]) == ("team", "research")
    assert budget["spending"] == [{"subject": "research", "spent": 36, "unpriced_calls": 0}]
    assert await db.read(lambda tx: tx.rows(SPENT)) == [("team", "research", 36), ("team", "sales", 18)]


@requirement("llm.teams")
async def test_a_budget_of_each_team_and_one_of_the_settings_apply(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="team:*:tokens/day=18,team:sales:tokens/month=5")
    ann, eve, free = [await member(world, n, t) for n, t in (("ann", "research"), ("eve", "sales"), ("free", ""))]
    assert [await ask(one) for one in (ann, ann, eve, eve, free, free)] == [200, 429, 200, 429, 200, 200]
    each, one = await budgets(world)
    assert {(row["subject"], row["spent"]) for row in each["spending"]} == {("research", 18), ("sales", 18)}
    assert [row["subject"] for row in one["spending"]] == ["sales"]


@requirement("llm.teams")
async def test_another_team_applies_to_the_next_call_and_takes_nothing_spent_along(world: World) -> None:
    await limit(world, "team:research:tokens:day", TOKENS_OF_A_CALL)
    ann = await member(world, "ann", "research")
    assert [await ask(ann), await ask(ann)] == [200, 429]
    changed = await world.admin.patch("/api/v1/keys/ann", json={"team": ""})
    assert (changed.status_code, changed.json()["team"]) == (200, "")
    assert await ask(ann) == 200
    # The team has spent what it spent: a newcomer finds its budget used up.
    assert await ask(await member(world, "ben", "research")) == 429
    assert (await world.admin.patch("/api/v1/keys/ann", json={"team": "research"})).status_code == 200
    assert await ask(ann) == 429


@requirement("llm.teams")
async def test_a_call_counts_to_the_team_of_its_start(world: World, db: Database, upstream: Upstream) -> None:
    await limit(world, "team:*:tokens:day", 1_000_000)
    ann = await member(world, "ann", "research")
    upstream.mood = moods.held(upstream)
    upstream.go.clear()
    asking_ann = asyncio.create_task(ask(ann))
    while not upstream.asked:
        await asyncio.sleep(0.01)
    await world.admin.patch("/api/v1/keys/ann", json={"team": "sales"})
    upstream.go.set()
    assert await asking_ann == 200
    assert await db.read(lambda tx: tx.rows(SPENT)) == [("team", "research", TOKENS_OF_A_CALL)]


@requirement("llm.teams")
async def test_calls_of_a_team_at_the_same_time_do_not_pass_its_budget_together(
    world: World, upstream: Upstream
) -> None:
    await limit(world, "team:research:tokens:day", 400)
    clients = [await member(world, name, "research") for name in ("ann", "ben", "cid")]
    assert await statuses_of_six_at_once(upstream, clients) == [200, 200, 429, 429, 429, 429]


@requirement("llm.teams")
async def test_tasks_of_a_key_count_to_its_team_also_after_its_revocation_and_a_restart(make_llm: Gate) -> None:
    world = await make_llm()
    await limit(world, "team:research:tokens:day", TOKENS_OF_A_CALL)
    await member(world, "ann", "research")
    # As tasks that `ann` has submitted call models.
    caller = LlmCaller("default", "ann", agent_id="an-agent", task_id="a-task")
    await world.kernel.llm.gateway.chat(caller, SAID)
    await world.admin.post("/api/v1/keys/ann/revoke")
    with pytest.raises(BudgetExceeded, match="team 'research'") as refused:
        await world.kernel.llm.gateway.chat(caller, SAID)
    assert not refused.value.is_outage, "the agent's tasks of others do not fail"
    with pytest.raises(BudgetExceeded, match="team 'research'"):
        await (await make_llm()).kernel.llm.gateway.chat(caller, SAID)


@requirement("llm.teams")
async def test_another_process_counts_to_the_same_team(make_llm: Gate) -> None:
    first, second = await make_llm(), await make_llm()
    await limit(first, "team:research:tokens:day", 2 * TOKENS_OF_A_CALL)
    ann = await make(first, "ann", team="research")
    await second.kernel.views.refresh(0)
    async with client_of(first, ann["key"]) as here, client_of(second, ann["key"]) as there:
        assert [await ask(here), await ask(there), await ask(here), await ask(there)] == [200, 200, 429, 429]
        late = await second.kernel.infra.db.read(second.kernel.keys.poll_query(0))
        await first.admin.patch("/api/v1/keys/ann", json={"team": ""})
        await second.kernel.views.refresh(0)
        late()  # a poll that read before the change must not bring the team back
        assert await ask(there) == 200


@requirement("llm.teams")
async def test_teams_of_tenants_with_the_same_name_are_two(world: World, db: Database) -> None:
    await limit(world, "team:research:tokens:day", 0)
    other = world.clients["OTHER"]
    made = await other.post("/api/v1/keys", json={"name": "zoe", "role": "operator", "team": "research"})
    assert made.status_code == 201, made.text
    assert [await ask(await member(world, "ann", "research")), await ask(client_of(world, made.json()["key"]))] == [
        429,
        200,
    ]
    assert await budgets(world, "OTHER") == []


@requirement("llm.teams")
async def test_members_see_the_budget_of_their_team_but_not_who_spent_it(world: World) -> None:
    for what in ("team:research:tokens:day", "team:sales:tokens:day", "team:*:usd:month"):
        await limit(world, what, 100)
    ann, eve = await member(world, "ann", "research"), await member(world, "eve", "sales")
    assert [await ask(ann), await ask(eve)] == [200, 200]
    seen = (await ann.get(BUDGETS)).json()["budgets"]
    assert [(one["subject"], one["unit"]) for one in seen] == [("research", "tokens"), ("*", "usd")]
    assert {row["subject"] for one in seen for row in one["spending"]} == {"research"}
    assert [one["kind"] for one in await budgets(world, "READER")] == [], "a key without a team"


@requirement("keys.teams")
async def test_no_agent_and_no_member_changes_a_team(world: World, db: Database) -> None:
    await limit(world, "team:research:tokens:day", 0)
    agent = await member(world, "bot", "research", role="agent", permissions=["read", "write", "admin"])
    for body in ({"team": ""}, {"team": "sales"}):
        refused = await agent.patch("/api/v1/keys/bot", json=body)
        assert refused.status_code == 403, refused.text
    fresh = {"name": "fresh", "role": "operator", "team": ""}
    assert (await agent.post("/api/v1/keys", json=fresh)).status_code == 403
    assert (await agent.delete(f"{BUDGETS}/team:research:tokens:day")).status_code == 403
    ann = await member(world, "ann", "research")
    assert (await ann.patch("/api/v1/keys/ann", json={"team": ""})).status_code == 403
    # What a request says about its team counts for nothing.
    answer = await ann.post("/api/v1/llm/chat", json=asking(), headers={"X-Team": "sales"})
    assert [answer.status_code, await ask(agent)] == [429, 429]
    assert len(await db.read(lambda tx: tx.rows(EVENTS))) == 2


@requirement("keys.teams")
@pytest.mark.parametrize("team", ["Research", "a b", "*", "-x", "a:b", "a=b", "a/b", "x" * 64, "a\n", None, 7, ["a"]])
async def test_a_team_that_a_budget_could_not_name_is_refused(world: World, team: Any) -> None:
    body = {"name": "ann", "role": "operator", "team": team}
    assert (await world.admin.post("/api/v1/keys", json=body)).status_code == 400
    await make(world, "ben")
    changed = await world.admin.patch("/api/v1/keys/ben", json={"team": team})
    # Null leaves a field as it is, and a change of nothing is refused.
    assert changed.status_code == 400, changed.text


@requirement("llm.teams")
@pytest.mark.parametrize("team", ["Research", "a b", "-x", "a:b", "a/b", "**"])
async def test_a_budget_that_no_team_could_have_is_refused(world: World, team: str) -> None:
    body = {"kind": "team", "subject": team, "unit": "usd", "period": "month", "limit": 1}
    answer = await world.admin.post(BUDGETS, json=body)
    assert (answer.status_code, "no team has the name" in answer.text) == (400, True)


@requirement("keys.teams", "keys.runlog")
async def test_the_run_log_says_who_changed_the_team(world: World) -> None:
    await member(world, "ann", "research")
    await world.admin.patch("/api/v1/keys/ann", json={"team": "sales"})
    listed = (await world.admin.get("/api/v1/audit", params={"category": "changes"})).json()["events"]
    changed, made = (event["metadata"] for event in listed[:2])
    assert (changed["team"], changed["changed"], changed["by"]) == ("sales", ["team"], "admin")
    assert (made["team"], made["change"]) == ("research", "created")


@requirement("llm.budgets-unpriced", "llm.teams")
async def test_a_budget_of_a_team_says_how_many_calls_it_does_not_count(world: World) -> None:
    await limit(world, "team:research:usd:month", 5)
    assert await ask(await member(world, "ann", "research")) == 200
    (budget,) = await budgets(world)
    assert budget["spending"] == [{"subject": "research", "spent": 0, "unpriced_calls": 1}]


@requirement("people.teams")
async def test_groups_give_a_team_at_each_sign_in(make_llm: Gate, provider: IdentityProvider) -> None:
    teams = "lab=research,ops=sales"
    world = await make_llm(**provider.settings, SERVICE_OIDC_TEAMS=teams)
    await limit(world, "team:research:tokens:day", TOKENS_OF_A_CALL)
    anna = Account("u-1", "anna@example.com", ["ops", "lab"])  # the first entry counts, not the first group
    bert = Account("u-2", "bert@example.com", ["ops"])
    both = [client_of(world, await session(world, provider, account)) for account in (anna, bert)]
    key = await member(world, "ann", "research")
    assert [await ask(both[0]), await ask(both[1]), await ask(key)] == [200, 200, 429]
    people = (await world.admin.get("/api/v1/people")).json()["people"]
    assert [(one["name"], one["team"]) for one in people] == [(anna.email, "research"), (bert.email, "sales")]
    seen = (await world.admin.get("/api/v1/audit", params={"category": "sign-ins"})).json()["events"]
    assert [event["metadata"].get("team") for event in seen] == ["sales", "research"]
    # The next sign-in brings another team, also for the session of before.
    await sign_in(world, provider, Account("u-1", "anna@example.com", ["ops"]))
    assert await ask(both[0]) == 200
    again = await make_llm(**provider.settings, SERVICE_OIDC_TEAMS=teams)
    people = (await again.admin.get("/api/v1/people")).json()["people"]
    assert [one["team"] for one in people] == ["sales", "sales"]


@requirement("people.teams")
@pytest.mark.parametrize("text", ["lab", "lab=", "=research", "lab=Research", "lab=a b", "lab=a:b", "lab=*"])
def test_a_malformed_team_of_a_group_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="data-science=research"):
        group_teams(text)
    assert group_teams(" cn=a,*=all ") == ("cn=a", "*=all")


@requirement("llm.teams")
@pytest.mark.parametrize("budget", ["team:tokens/day=5", "team:Data Science:tokens/day=5", "team: sales:tokens/day=5"])
async def test_a_budget_that_limits_no_team_stops_the_start(make_llm: Gate, budget: str) -> None:
    with pytest.raises(StartRefused, match="team:NAME:usd/month=50"):
        await make_llm(SERVICE_LLM_BUDGETS=budget)
