"""Agent to agent: a message reaches its agent as a task, and the agent's answer comes back as the response."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import World
from tests.domains.messaging.conftest import Post, form, task
from tests.domains.streams import parse
from tests.patience import soon
from tests.requirements import requirement


@requirement("atp.messages-act-on-zones", "atp.mode-semantics")
async def test_a_message_to_an_agent_arrives_as_a_task_and_its_answer_is_the_response(post: Post) -> None:
    ann = await post.world.register("ann")
    message_id = await post.send(task(input={"text": "hello"}))
    claim = await post.claimed(ann)
    assert (claim["type"], claim["input"]) == ("echo", {"text": "hello"})
    assert (await post.ask(f"response/{message_id}")).status_code == 404
    assert (await post.message(message_id))["status"] == "executing"
    await post.complete(claim, {"echo": "hello"})
    answer = await post.over(message_id)
    assert answer["status"] == "completed"
    assert answer["response"]["result"] == {"echo": "hello"}
    assert answer["response"]["status"] == "completed"
    assert answer["route"]["targetAgents"] == [ann]
    assert "ann" in answer["route"]["rationale"]


async def test_an_agent_that_fails_fails_the_message(post: Post) -> None:
    ann = await post.world.register("ann")
    message_id = await post.send(task())
    await post.complete(await post.claimed(ann), verb="fail")
    answer = await post.over(message_id)
    assert answer["status"] == "failed"
    assert answer["response"]["error"] == {"code": "AGENT_ERROR", "message": "no"}
    assert (await post.message(message_id))["status"] == "failed"


async def test_a_message_that_nobody_may_take_fails_with_the_code_of_routing(post: Post) -> None:
    error = await post.fail(task(), specialNotes="capability=echo")
    assert error["code"] == "ROUTING_CAPABILITY_UNAVAILABLE"
    assert error["details"]["required_capabilities"] == ["echo"]


@requirement("atp.headers-hidden-from-agents")
async def test_an_agent_sees_nothing_of_the_header(post: Post) -> None:
    bob = await post.world.register("bob", key_name="bob")
    ann = await post.world.register("ann", capabilities=["listen"])
    header: dict[str, Any] = {"context": "secret-context", "specialNotes": "capability=listen,colour=mauve"}
    await post.send("What is new?", client="BOB", **header)
    claim = await post.claimed(ann)
    assert (claim["type"], claim["input"]) == ("message", "What is new?")
    shown = json.dumps(claim)
    for hidden in ("secret-context", "mauve", "#Mode", "actionType", "senderId", "sender_agent", bob):
        assert hidden not in shown, hidden


@requirement("atp.headers-hidden-from-agents", "atp.pasted-head")
async def test_a_head_that_was_pasted_into_the_text_does_not_reach_the_agent_either(post: Post) -> None:
    ann = await post.world.register("ann")
    wire = "#Mode: direct\n#Context: secret\n#SpecialNotes: capability=root\n\nThe text."
    for body in (wire, task(input=wire), "\n " + wire.replace("\n", "\r\n")):
        await post.send(body, specialNotes="capability=echo")
        assert (await post.claimed(ann))["input"] == "The text."


async def test_an_agent_is_addressed_by_its_id_in_the_envelope_or_in_the_body(post: Post) -> None:
    ann, ben = await post.world.register("ann"), await post.world.register("ben")
    for agent in (ann, ben, ann):
        await post.send("hi", specialNotes=f"agent={agent}")
        assert (await post.claimed(agent))["input"] == "hi"
        await post.send(task(agent_preference=agent))
        assert (await post.claimed(agent))["input"] == "hello"


async def test_body_and_envelope_may_not_name_two_agents(post: Post) -> None:
    ann, ben = await post.world.register("ann"), await post.world.register("ben")
    answer = await post.ask("send", json=form(task(agent_preference=ann), specialNotes=f"agent={ben}"))
    assert answer.status_code == 400
    assert list(answer.json()["error"]["details"]["fields"]) == ["payload.content.task.agent_preference"]


@requirement("routing.atp-capability-from-envelope", "atp.body-narrows")
async def test_the_body_cannot_reach_an_agent_that_the_envelope_does_not(post: Post) -> None:
    await post.world.register("ann", capabilities=["shell"])
    error = await post.fail(task(required_capabilities=["shell"]), specialNotes="capability=echo")
    assert error["code"] == "ROUTING_CAPABILITY_UNAVAILABLE"
    ben = await post.world.register("ben", capabilities=["echo"], alignment_score=0)
    both = await post.world.register("both", capabilities=["echo", "shell"], alignment_score=0)
    await post.send(task(required_capabilities=[]), specialNotes="capability=echo", context="any with echo")
    await post.send(task(required_capabilities=["shell"]), specialNotes="capability=echo", context="fewer of these")
    assert (await post.claimed(ben))["required_capabilities"] == ["echo"]
    assert (await post.claimed(both))["required_capabilities"] == ["echo", "shell"]


@requirement("atp.contract-bodies", "atp.body-narrows")
@pytest.mark.parametrize("action", ["execute", "schedule"])
async def test_under_an_envelope_that_names_nothing_the_body_chooses_among_all_agents(post: Post, action: str) -> None:
    await post.world.register("ann", capabilities=["echo"], alignment_score=1)
    ben = await post.world.register("ben", capabilities=["shell"], alignment_score=0)
    body = task(required_capabilities=["shell"])
    asked = await post.ask("route", json=form(body))
    assert asked.json()["data"]["targetAgents"] == [ben]
    await post.send(body, action=action)
    assert (await post.claimed(ben))["required_capabilities"] == ["shell"]
    error = await post.fail(task(required_capabilities=["nothing"]), action=action)
    assert error["code"] == "ROUTING_CAPABILITY_UNAVAILABLE"


@requirement("atp.body-narrows")
async def test_the_body_may_require_something_of_the_agent_that_the_envelope_names(post: Post) -> None:
    ann = await post.world.register("ann", capabilities=["shell"])
    await post.send(task(required_capabilities=["shell"]), specialNotes=f"agent={ann}")
    assert (await post.claimed(ann))["required_capabilities"] == ["shell"]
    ben = await post.world.register("ben", capabilities=["rest"])
    error = await post.fail(task(required_capabilities=["shell"]), specialNotes=f"agent={ben}")
    assert error["code"] == "ROUTING_AGENT_INELIGIBLE"


@requirement("learning.connection-by-atp-sender")
async def test_a_success_strengthens_the_connection_between_sender_and_doer(post: Post) -> None:
    bob, ann = await post.world.register("bob", key_name="bob"), await post.world.register("ann", capabilities=["x"])
    for verb in ("fail", "complete"):
        message_id = await post.send("hi", client="BOB", specialNotes="capability=x")
        await post.complete(await post.claimed(ann), verb=verb)
        await post.over(message_id)
        links = (await post.world.admin.get("/api/v1/hebbian/connections")).json()["connections"]
        assert len(links) == (verb == "complete")
    assert {links[0]["agent1"], links[0]["agent2"]} == {ann, bob}
    assert links[0]["weight"] > 1
    assert (await post.message(message_id))["message"]["header"]["senderId"] == bob


@requirement("atp.mode-semantics")
async def test_async_acknowledges_at_once_and_answers_when_the_work_is_done(post: Post) -> None:
    ann = await post.world.register("ann")
    message_id = await post.send(task(), mode="async")
    first = await post.known(message_id)
    assert first["status"] == "executing"
    assert first["response"]["acknowledged"] is True
    claim = await post.claimed(ann)
    assert first["response"]["task_id"] == claim["task_id"]
    await post.complete(claim)
    assert (await post.over(message_id))["response"]["result"] == "hi"


@requirement("atp.mode-semantics")
async def test_a_direct_message_ends_with_its_timeout_and_what_nobody_began_is_cancelled(post: Post) -> None:
    await post.world.register("ann")
    message_id = await post.send(task(timeout_seconds=5))
    late = await post.send(task(timeout_seconds=5), mode="async")
    task_id = (await post.known(late))["response"]["task_id"]
    while (await post.message(message_id))["status"] == "queued":
        pass
    post.world.clock.advance(seconds=6)
    answer = await post.over(message_id)
    assert answer["status"] == "failed"
    assert answer["response"]["error"]["code"] == "TIMEOUT"
    assert (await post.world.task(answer["response"]["task_id"]))["status"] == "cancelled"
    assert (await post.world.task(task_id))["status"] == "queued"


@requirement("atp.mode-semantics")
async def test_a_message_whose_task_its_sender_sees_no_more_ends_and_delays_no_other(post: Post) -> None:
    world = post.world
    ann = await world.register("ann", key_name="bob")
    task_id = await world.submit(timeout_seconds=5)
    claim = (await world.clients["BOB"].post(f"/api/v1/agents/{ann}/claims", json={"wait_seconds": 60})).json()["tasks"]
    failed = {"epoch": claim[0]["epoch"], "error": {"message": "no"}}
    assert (await world.clients["BOB"].post(f"/api/v1/tasks/{task_id}/fail", json=failed)).status_code == 200
    await world.register("zoe", key_name="writer", alignment_score=1.0, accuracy_score=1.0, efficiency_score=1.0)
    message_id = await post.send({"task_id": task_id}, action="retry", client="BOB")
    other = await post.send(task(timeout_seconds=5))

    async def routed() -> bool:
        return all([(await post.message(waiting))["route"] for waiting in (message_id, other)])

    await soon(routed)
    assert (await world.clients["BOB"].get(f"/api/v1/tasks/{task_id}")).status_code == 404
    assert (await world.clients["BOB"].get(f"/api/v1/tasks/{task_id}")).status_code == 404
    world.clock.advance(seconds=6)
    for waiting in (message_id, other):
        assert (await post.over(waiting))["response"]["error"]["code"] == "TIMEOUT"
    assert (await world.task(task_id))["status"] == "cancelled"


@requirement("tasks.agents-see-their-own")
async def test_the_response_of_a_task_that_its_sender_sees_no_more_has_no_result(post: Post) -> None:
    world = post.world
    ann = await world.register("ann", key_name="bob")
    task_id = await world.submit()
    claim = (await world.clients["BOB"].post(f"/api/v1/agents/{ann}/claims", json={"wait_seconds": 60})).json()["tasks"]
    failed = {"epoch": claim[0]["epoch"], "error": {"message": "no"}}
    assert (await world.clients["BOB"].post(f"/api/v1/tasks/{task_id}/fail", json=failed)).status_code == 200
    zoe = await world.register("zoe", key_name="writer", alignment_score=1.0, accuracy_score=1.0, efficiency_score=1.0)
    message_id = await post.send({"task_id": task_id}, action="retry", client="BOB")
    await post.complete(await post.claimed(zoe), "of another agent")
    answer = await post.over(message_id)
    assert (answer["status"], answer["response"]) == ("completed", {"task_id": task_id, "status": "completed"})
    stream = await post.ask(f"response/{message_id}", "BOB", headers={"Accept": "text/event-stream"})
    assert "of another agent" not in stream.text
    assert parse(stream.text)[-1].event == "error"
    stream = await post.ask(f"response/{message_id}", headers={"Accept": "text/event-stream"})
    assert parse(stream.text)[-1].event == "complete", "another reader sees what that reader may see"


async def test_a_message_with_the_id_of_another_task_is_a_conflict(post: Post) -> None:
    ann = await post.world.register("ann")
    first = await post.send(task(id="mine"))
    error = await post.fail(task(id="mine", input="other"))
    assert error["code"] == "CONFLICT"
    await post.complete(await post.claimed(ann))
    assert (await post.over(first))["response"]["task_id"] == "mine"


@requirement("atp.responses-carry-atp-block")
async def test_the_events_of_a_message_and_its_task_are_one_tree(post: Post) -> None:
    ann = await post.world.register("ann")
    message_id = await post.send(task(), specialNotes="capability=echo")
    claim = await post.claimed(ann)
    await post.complete(claim)
    answer = await post.over(message_id)
    header = form("", specialNotes="capability=echo")["header"]
    assert answer["atp"] == {**header, "header": header}
    root = answer["provenance_id"]
    events = {e["event_id"]: e for e in await all_events(post.world)}
    received = next(e for e in (await post.world.events(claim["task_id"])) if e["event_type"] == "prompt_received")
    chain = []
    at = received["event_id"]
    while at is not None:
        chain.append(events[at]["event_type"])
        at = events[at]["parent_id"]
    assert chain == ["prompt_received", "message_started", "message_received"]
    assert events[root]["event_type"] == "message_received"
    done = next(e for e in events.values() if e["event_type"] == "message_completed")
    assert events[done["parent_id"]]["parent_id"] == root


async def all_events(world: World) -> list[dict[str, Any]]:
    from stentor.core.db import Sql

    names = ("event_id", "parent_id", "event_type", "metadata")
    statement = Sql(f"select {', '.join(names)} from events order by event_id")
    rows = await world.kernel.infra.db.read(lambda tx: tx.rows(statement))
    return [dict(zip(names, row, strict=True)) for row in rows]
