"""Delegated authority: it only narrows, ends with its task, and admission looks at it twice."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.core.clock import format_iso
from stentor.core.db import Sql
from stentor.domains.tasks.queues import queue_store
from tests.conftest import MakeWorld, World
from tests.domains.messaging.conftest import form
from tests.requirements import requirement

NOBODY = "00000000-0000-4000-8000-000000000000"


class Crew:
    """A planner that holds a task, a helper of another key, and agents that can do things."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def board(self) -> Crew:
        world = self.world
        self.planner = await world.register("planner", capabilities=["plan"], key_name="bob")
        self.helper = await world.register("helper", capabilities=["help"], key_name="writer")
        self.doer = await world.register("doer", capabilities=["read", "write", "help"])
        self.task = await world.submit(type="plan", required_capabilities=["plan"], id="plan-1")
        self.epoch = (await world.claim(self.planner))["epoch"]
        return self

    async def grant(self, key: str = "BOB", task: str | None = None, **fields: Any) -> Any:
        body = {"epoch": self.epoch, "to_agent": self.planner, "capabilities": ["read"], **fields}
        return await self.world.clients[key].post(f"/api/v1/tasks/{task or self.task}/grants", json=body)

    async def granted(self, **fields: Any) -> dict[str, Any]:
        answer = await self.grant(**fields)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def use(self, grant_id: str, *capabilities: str, key: str = "BOB", **fields: Any) -> Any:
        body = {"type": "x", "input": 1, "required_capabilities": capabilities, "metadata": {"grant_id": grant_id}}
        return await self.world.clients[key].post("/api/v1/tasks", json={**body, **fields})


@pytest.fixture
async def crew(world: World) -> Crew:
    return await Crew(world).board()


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@requirement("governance.grants")
async def test_a_grant_says_what_it_gives_for_which_task_and_until_when(crew: Crew) -> None:
    grant = await crew.granted(expires_in_seconds=60)
    assert (grant["task_id"], grant["from_agent"], grant["to_agent"]) == (crew.task, crew.planner, crew.planner)
    assert (grant["capabilities"], grant["depth"], grant["parent_grant_id"]) == (["read"], 1, None)
    assert grant["expires_at"] == format_iso(crew.world.clock.now() + 60_000_000)
    assert (await crew.world.admin.get(f"/api/v1/grants/{grant['grant_id']}")).json() == grant
    assert (await crew.world.admin.get(f"/api/v1/tasks/{crew.task}/grants")).json() == {"grants": [grant]}
    trail = await crew.world.events(crew.task)
    (event,) = [event for event in trail if event["event_type"] == "authority_granted"]
    assert event["metadata"]["capabilities"] == ["read"]


@requirement("governance.grants")
async def test_a_grant_ends_with_its_tasks_time_however_long_it_was_asked_for(crew: Crew) -> None:
    grant = await crew.granted(expires_in_seconds=86_400)
    assert grant["expires_at"] == format_iso(crew.world.clock.now() + 300_000_000)


@requirement("routing.authority-denied-403")
async def test_work_within_a_grant_is_admitted_below_its_task_and_work_beyond_it_is_denied(crew: Crew) -> None:
    grant = (await crew.granted())["grant_id"]
    within = await crew.use(grant, "read")
    assert within.status_code == 202
    task = await crew.world.task(within.json()["task_id"])
    assert (task["metadata"]["parent_task_id"], task["metadata"]["grant_id"]) == (crew.task, grant)
    assert code(await crew.use(grant, "read", "write")) == (403, "ROUTING_AUTHORITY_DENIED")


@requirement("routing.authority-denied-403")
async def test_work_under_a_grant_that_names_no_capability_reaches_nobody_who_can_do_more(crew: Crew) -> None:
    grant = (await crew.granted())["grant_id"]
    assert code(await crew.use(grant)) == (403, "ROUTING_AUTHORITY_DENIED")
    assert code(await crew.use(grant, agent_preference=crew.doer)) == (409, "ROUTING_AGENT_INELIGIBLE")
    reader = await crew.world.register("reader", capabilities=["read"])
    within = await crew.use(grant)
    assert (await crew.world.task(within.json()["task_id"]))["assigned_agent"] == reader


@requirement("tasks.same-id-same-body-replays")
async def test_work_that_is_submitted_again_after_its_grant_ended_is_the_work_that_was_admitted(crew: Crew) -> None:
    grant = (await crew.granted())["grant_id"]
    first = await crew.use(grant, "read", id="a-part")
    assert first.status_code == 202
    suspended = await crew.world.admin.post(f"/api/v1/registry/agents/{crew.planner}/suspend", json={"reason": "x"})
    assert suspended.status_code == 200
    again = await crew.use(grant, "read", id="a-part")
    assert (again.status_code, again.json()["task_id"]) == (first.status_code, "a-part")


@requirement("governance.grants", "routing.authority-denied-403")
async def test_only_the_agent_that_it_was_handed_to_may_use_it(crew: Crew) -> None:
    bob = (await crew.granted())["grant_id"]
    assert (await crew.use(bob, "read", key="ADMIN")).status_code == 202  # for whom it narrows
    theirs = (await crew.granted(to_agent=crew.doer))["grant_id"]
    assert code(await crew.use(theirs, "read")) == (403, "ROUTING_AUTHORITY_DENIED")
    assert code(await crew.use(NOBODY, "read")) == (403, "ROUTING_AUTHORITY_DENIED")
    foreign = await crew.world.clients["OTHER"].get(f"/api/v1/grants/{bob}")
    assert code(foreign) == (404, "NOT_FOUND")


@requirement("tasks.subtasks")
async def test_a_grant_that_the_caller_does_not_hold_opens_no_task_of_others(crew: Crew) -> None:
    theirs = (await crew.granted(to_agent=crew.doer))["grant_id"]
    secret = await crew.world.submit(required_capabilities=["read"])
    answers = []
    for parent in (secret, "no-such-task"):
        for grant in (theirs, NOBODY):
            answer = await crew.use(grant, "read", metadata={"grant_id": grant, "parent_task_id": parent})
            answers.append((code(answer), answer.json()["error"]["message"].replace(parent, "...")))
    assert answers[0][0] == (400, "INVALID_REQUEST")
    assert len(set(answers)) == 1
    below = await crew.world.admin.get("/api/v1/tasks", params={"parent_task_id": secret})
    assert below.json()["tasks"] == []


@requirement("routing.authority-denied-403")
@pytest.mark.parametrize("end", ["expired", "revoked", "task over", "holder suspended"])
async def test_a_grant_that_has_ended_gives_nothing(crew: Crew, end: str) -> None:
    grant = (await crew.granted(expires_in_seconds=10))["grant_id"]
    if end == "expired":
        crew.world.clock.advance(seconds=11)
    elif end == "revoked":
        assert (await crew.world.admin.post(f"/api/v1/grants/{grant}/revoke")).status_code == 200
    elif end == "task over":
        body = {"epoch": crew.epoch, "result": 1}
        assert (await crew.world.admin.post(f"/api/v1/tasks/{crew.task}/complete", json=body)).status_code == 200
    else:
        await crew.world.admin.post(f"/api/v1/registry/agents/{crew.planner}/suspend", json={"reason": "x"})
    assert code(await crew.use(grant, "read")) == (403, "ROUTING_AUTHORITY_DENIED")


@requirement("routing.authority-denied-403", "governance.grants")
@pytest.mark.parametrize("status", ["suspended", "quarantined"])
async def test_a_grant_of_an_agent_that_is_no_longer_active_gives_nothing(crew: Crew, status: str) -> None:
    world, agents = crew.world, "/api/v1/registry/agents"
    first = (await crew.granted(to_agent=crew.helper, capabilities=["read", "help"]))["grant_id"]
    below = (await crew.use(first, "help", key="WRITER", agent_preference=crew.helper)).json()["task_id"]
    epoch = (await world.claim(crew.helper))["epoch"]
    second = (await crew.granted(task=below, epoch=epoch, key="ADMIN", to_agent=crew.doer))["grant_id"]
    waiting = (await crew.use(first, "read", key="WRITER")).json()["task_id"]
    if status == "suspended":
        await world.admin.post(f"{agents}/{crew.planner}/suspend", json={"reason": "x"})
    else:
        for _ in range(3):
            await world.admin.post(f"{agents}/{crew.planner}/authorize", json={"tool": "shell", "operation": "run"})
    assert (await world.admin.get(f"{agents}/{crew.planner}")).json()["status"] == status
    for grant, key in ((first, "WRITER"), (second, "ADMIN")):
        assert code(await crew.use(grant, "read", key=key)) == (403, "ROUTING_AUTHORITY_DENIED")
    assert (await world.admin.post(f"/api/v1/agents/{crew.doer}/claims", json={})).json()["tasks"] == []
    assert (await world.task(waiting))["error"]["code"] == "ROUTING_AUTHORITY_DENIED"
    listed = await world.kernel.tasks.grants.list_for_agents("default", [crew.helper])
    assert listed == []


@requirement("routing.authority-denied-403", "governance.delegated-authority-narrows")
async def test_the_end_of_the_first_task_ends_what_was_handed_on_from_it(crew: Crew) -> None:
    first = (await crew.granted(to_agent=crew.helper, capabilities=["read", "help"]))["grant_id"]
    below = (await crew.use(first, "help", key="WRITER", agent_preference=crew.helper)).json()["task_id"]
    hand = {"task": below, "epoch": (await crew.world.claim(crew.helper))["epoch"], "key": "ADMIN"}
    second = (await crew.granted(**hand))["grant_id"]
    assert (await crew.use(second, "read")).status_code == 202
    body = {"epoch": crew.epoch, "result": 1}
    assert (await crew.world.admin.post(f"/api/v1/tasks/{crew.task}/complete", json=body)).status_code == 200
    assert code(await crew.use(second, "read")) == (403, "ROUTING_AUTHORITY_DENIED")
    assert code(await crew.grant(**hand)) == (403, "ROUTING_AUTHORITY_DENIED")


@requirement("governance.grants", "routing.authority-denied-403")
@pytest.mark.parametrize("claimed", [False, True])
async def test_a_retry_of_the_task_does_not_bring_an_old_grant_back(crew: Crew, claimed: bool) -> None:
    grant = (await crew.granted())["grant_id"]
    body = {"epoch": crew.epoch, "error": {"message": "no"}}
    assert (await crew.world.admin.post(f"/api/v1/tasks/{crew.task}/fail", json=body)).status_code == 200
    assert (await crew.world.admin.post(f"/api/v1/tasks/{crew.task}/retry")).status_code == 202
    if claimed:
        crew.epoch = (await crew.world.claim(crew.planner))["epoch"]
    assert code(await crew.use(grant, "read")) == (403, "ROUTING_AUTHORITY_DENIED")
    if claimed:
        assert (await crew.use((await crew.granted())["grant_id"], "read")).status_code == 202


@requirement("routing.authority-denied-403")
@pytest.mark.parametrize("revoked", [True, False])
async def test_admission_looks_again_at_dispatch(crew: Crew, revoked: bool) -> None:
    world = crew.world
    grant = (await crew.granted())["grant_id"]
    task_id = (await crew.use(grant, "read")).json()["task_id"]
    if revoked:
        await world.admin.post(f"/api/v1/grants/{grant}/revoke")
    answer = await world.admin.post(f"/api/v1/agents/{crew.doer}/claims", json={})
    assert len(answer.json()["tasks"]) == (not revoked)
    task = await world.task(task_id)
    if revoked:
        assert (task["status"], task["error"]["code"]) == ("failed", "ROUTING_AUTHORITY_DENIED")
        assert (await world.admin.post(f"/api/v1/tasks/{task_id}/retry")).status_code == 403


@requirement("routing.authority-denied-403")
async def test_a_restart_still_looks_again(crew: Crew) -> None:
    grant = (await crew.granted())["grant_id"]
    await crew.use(grant, "read")
    sql = Sql(f"select {queue_store.QUEUED_COLUMNS} from tasks where status = 'queued'")
    rows = await crew.world.kernel.infra.db.read(lambda tx: tx.rows(sql))
    assert [queue_store.queued_from_row(row).granted for row in rows] == [True]


@requirement("governance.delegated-authority-narrows")
async def test_a_grant_is_handed_on_only_narrower_and_four_times_at_most(crew: Crew) -> None:
    world = crew.world
    agent = await world.register("relay", capabilities=["help"], key_name="bob")
    grant = await crew.granted(capabilities=["help", "read"], to_agent=agent, expires_in_seconds=100)
    for depth in (2, 3, 4, 5):
        body = {"agent_preference": agent}
        task_id = (await crew.use(grant["grant_id"], "help", **body)).json()["task_id"]
        epoch = (await world.claim(agent))["epoch"]
        wider = await crew.grant(task=task_id, epoch=epoch, capabilities=["help", "write"], to_agent=agent)
        assert code(wider) == (403, "ROUTING_AUTHORITY_DENIED")
        answer = await crew.grant(task=task_id, epoch=epoch, capabilities=["help"], to_agent=agent)
        if depth == 5:
            assert code(answer) == (403, "ROUTING_AUTHORITY_DENIED")
            return
        assert answer.status_code == 201, answer.text
        child = answer.json()
        assert (child["depth"], child["parent_grant_id"]) == (depth, grant["grant_id"])
        assert child["expires_at"] <= grant["expires_at"]
        grant = child


@requirement("governance.grants")
async def test_taking_authority_back_takes_back_all_that_came_from_it(crew: Crew) -> None:
    world = crew.world
    agent = await world.register("relay", capabilities=["help"], key_name="bob")
    root = await crew.granted(capabilities=["help"], to_agent=agent)
    task_id = (await crew.use(root["grant_id"], "help", agent_preference=agent)).json()["task_id"]
    epoch = (await world.claim(agent))["epoch"]
    child = (await crew.grant(task=task_id, epoch=epoch, capabilities=["help"], to_agent=agent)).json()
    assert (await crew.use(child["grant_id"], "help")).status_code == 202
    for _ in range(2):
        revoked = await world.clients["BOB"].post(f"/api/v1/grants/{root['grant_id']}/revoke")
        assert (revoked.status_code, revoked.json()["revoked_at"] is not None) == (200, True)
    assert code(await crew.use(child["grant_id"], "help")) == (403, "ROUTING_AUTHORITY_DENIED")


@requirement("governance.grants")
async def test_only_who_holds_the_task_hands_authority_on(crew: Crew) -> None:
    world = crew.world
    assert code(await crew.grant(epoch=crew.epoch + 1)) == (409, "LEASE_LOST")
    assert code(await crew.grant(task="none")) == (404, "NOT_FOUND")
    assert code(await crew.grant(to_agent=NOBODY)) == (404, "NOT_FOUND")
    stranger = await world.register("stranger", capabilities=["echo"], key_name="nobody")
    task_id = await world.submit(agent_preference=stranger)
    epoch = (await world.claim(stranger))["epoch"]
    assert code(await crew.grant(task=task_id, epoch=epoch)) == (404, "NOT_FOUND")
    grant = await crew.granted(key="ADMIN", task=task_id, epoch=epoch, to_agent=stranger)
    assert code(await world.clients["BOB"].post(f"/api/v1/grants/{grant['grant_id']}/revoke")) == (403, "FORBIDDEN")


@requirement("governance.grants")
async def test_agents_may_be_kept_to_what_they_can_do_or_were_granted(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_AGENTS_OWN_AUTHORITY="1")
    crew = await Crew(world).board()
    body = {"type": "x", "input": 1, "required_capabilities": ["read"]}
    assert code(await world.clients["BOB"].post("/api/v1/tasks", json=body)) == (403, "ROUTING_AUTHORITY_DENIED")
    assert (await world.clients["WRITER"].post("/api/v1/tasks", json=body)).status_code == 202  # no agent's key
    assert code(await crew.grant(capabilities=["read"])) == (403, "ROUTING_AUTHORITY_DENIED")
    by_admin = await crew.grant(key="ADMIN", capabilities=["plan"])
    assert by_admin.status_code == 201


@requirement("routing.authority-denied-403")
async def test_agents_kept_to_what_they_can_do_reach_no_others_by_naming_no_capability(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_AGENTS_OWN_AUTHORITY="1")
    crew = await Crew(world).board()
    bob, body = world.clients["BOB"], {"type": "x", "input": 1}
    preferring = {**body, "agent_preference": crew.doer}
    assert code(await bob.post("/api/v1/tasks", json=preferring)) == (409, "ROUTING_AGENT_INELIGIBLE")
    own = (await bob.post("/api/v1/tasks", json=body)).json()["task_id"]
    assert (await world.task(own))["assigned_agent"] == crew.planner
    rerun = await bob.post(f"/api/v1/tasks/{own}/rerun", json={"agent_preference": crew.doer})
    assert code(rerun) == (409, "ROUTING_AGENT_INELIGIBLE")
    message = form("hi", specialNotes=f"agent={crew.doer}")
    assert code(await bob.post("/api/v1/atp/route", json=message)) == (409, "ROUTING_AGENT_INELIGIBLE")


@requirement("http.whoami")
async def test_a_caller_reads_who_it_is_and_what_was_handed_to_it(crew: Crew) -> None:
    grant = await crew.granted(capabilities=["read"])
    who = (await crew.world.clients["BOB"].get("/api/v1/whoami")).json()
    assert (who["name"], who["role"], who["tenant"]) == ("bob", "agent", "default")
    assert who["permissions"] == ["read", "write"]
    assert [agent["name"] for agent in who["agents"]] == ["planner"]
    assert who["grants"] == [grant]
    crew.world.clock.advance(seconds=301)
    assert (await crew.world.clients["BOB"].get("/api/v1/whoami")).json()["grants"] == []


@requirement("http.whoami")
async def test_authority_is_not_shown_any_more_when_the_work_is_over_that_it_was_for(crew: Crew) -> None:
    await crew.granted(capabilities=["read"])
    bob = crew.world.clients["BOB"]
    assert len((await bob.get("/api/v1/whoami")).json()["grants"]) == 1
    assert (await crew.world.admin.post(f"/api/v1/tasks/{crew.task}/cancel")).status_code == 200
    assert (await bob.get("/api/v1/whoami")).json()["grants"] == []


@requirement("http.whoami")
async def test_a_key_without_agents_holds_nothing(crew: Crew) -> None:
    assert (await crew.world.clients["READER"].get("/api/v1/whoami")).json()["agents"] == []


async def test_without_its_event_nothing_is_handed_on(crew: Crew) -> None:
    crew.world.runlog.broken = True
    assert (await crew.grant()).status_code == 503
    crew.world.runlog.broken = False
    assert (await crew.world.admin.get(f"/api/v1/tasks/{crew.task}/grants")).json() == {"grants": []}


@pytest.mark.parametrize(
    "wrong",
    [
        {"capabilities": []},
        {"capabilities": [""]},
        {"capabilities": ["x"] * 33},
        {"to_agent": "ann"},
        {"expires_in_seconds": 0},
        {"expires_in_seconds": 86_401},
        {"epoch": 0},
        {"more": 1},
    ],
)
async def test_a_wish_that_does_not_hold_is_refused(crew: Crew, wrong: dict[str, Any]) -> None:
    assert code(await crew.grant(**wrong)) == (400, "INVALID_REQUEST")
