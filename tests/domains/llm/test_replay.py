"""Replays of runs of model agents: what is the same, what differs, and that nothing is called or recorded."""

from __future__ import annotations

import json
from typing import Any

from stentor.core.db import NO_LOCKS, Sql
from tests.conftest import World
from tests.domains.llm.test_tool_loop import SCHEMA, Script, Site, agent_body, get, think, thinker
from tests.domains.llm.test_tool_loop import site as site
from tests.domains.llm.test_tool_loop import world as world
from tests.domains.llm.upstream import Upstream
from tests.requirements import requirement


async def replay(world: World, task_id: str, **params: str) -> dict[str, Any]:
    answer = await world.admin.get(f"/api/v1/tasks/{task_id}/replay", params=params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def refusal(world: World, task_id: str, status: int, **params: str) -> str:
    answer = await world.admin.get(f"/api/v1/tasks/{task_id}/replay", params=params)
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


async def another(world: World, site: Site, *, tools: bool = True, **options: Any) -> str:
    """An agent like the thinker, with other options."""
    body = agent_body(site, **options) | {"name": "another"}
    if not tools:
        del body["sandbox_whitelist"]["tools"][0]
    return await world.register(**body)


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {step["key"]: step["verdict"] for step in report["steps"]}


def reasons(report: dict[str, Any], key: str) -> list[str]:
    return next(list(step["reasons"]) for step in report["steps"] if step["key"] == key)


@requirement("execution.replay")
async def test_a_run_replayed_with_its_agent_is_the_same_and_nothing_happens(
    world: World, upstream: Upstream, site: Site
) -> None:
    await thinker(world, site)
    Script(upstream, [get(site), get(site, method="POST", body="x")], "It is 42.")
    task = await think(world)
    before = await world.events(task["task_id"])
    report = await replay(world, task["task_id"])
    assert report["verdict"] == "same", json.dumps(report)
    assert set(verdicts(report).values()) == {"same"}
    assert list(verdicts(report)) == ["model 1", "model 1/tool 1", "model 1/tool 2", "model 2"]
    assert (report["difference"], report["stopped_at"], report["result"]) == (None, None, task["result"])
    assert (len(upstream.asked), len(site.requests)) == (2, 2)
    assert await world.events(task["task_id"]) == before
    assert await world.task(task["task_id"]) == task


@requirement("execution.replay")
async def test_each_step_says_in_what_its_request_differs(world: World, upstream: Upstream, site: Site) -> None:
    await thinker(world, site, temperature=0.2)
    Script(upstream, get(site), "It is 42.")
    task = await think(world)
    changed = await another(
        world, site, tools=False, system_prompt="Think twice.", model="openai/sea-small", temperature=0.7
    )
    report = await replay(world, task["task_id"], agent_id=changed)
    assert (report["verdict"], report["agent_name"]) == ("differs", "another")
    expected = [
        "model: openai/sea-large before, openai/sea-small now",
        "instructions changed",
        "tools removed: http_request",
        "temperature: 0.2 before, 0.7 now",
    ]
    assert reasons(report, "model 1") == reasons(report, "model 2") == expected
    assert reasons(report, "model 1/tool 1") == ["the agent may no longer use http_request"]
    only_model = await replay(world, task["task_id"], model="openai/sea-small")
    assert reasons(only_model, "model 1") == ["model: openai/sea-large before, openai/sea-small now"]
    assert "Think" not in json.dumps(report)


@requirement("execution.replay")
async def test_a_replay_stops_where_the_run_would_go_on_and_tells_what_it_would_not_reach(
    world: World, upstream: Upstream, site: Site
) -> None:
    await thinker(world, site, output_schema=SCHEMA)
    Script(upstream, '{"n": "many"}', '{"n": 42}')
    task = await think(world)
    assert (await replay(world, task["task_id"]))["verdict"] == "same"
    strict = SCHEMA | {"properties": {"n": {"type": "integer", "maximum": 9}}}
    longer = await replay(world, task["task_id"], agent_id=await another(world, site, output_schema=strict))
    assert (longer["stopped_at"], verdicts(longer)["model 3"]) == ("model 3", "new")
    assert "continues with model 3" in longer["difference"]
    assert "does not match output_schema now" in reasons(longer, "model 2")[-1]
    loose = SCHEMA | {"properties": {"n": {}}}
    shorter = await replay(world, task["task_id"], agent_id=await another(world, site, output_schema=loose))
    assert verdicts(shorter) == {"model 1": "differs", "model 2": "not_reached"}
    assert reasons(shorter, "model 1") == ["output_schema changed", "the answer matches output_schema now"]


@requirement("execution.replay")
async def test_a_run_that_ended_early_is_compared_as_far_as_it_was_recorded(
    world: World, upstream: Upstream, site: Site
) -> None:
    await thinker(world, site)
    site.silent = True
    Script(upstream, get(site, method="POST"), "Paid.")
    task = await think(world)
    assert task["error"]["code"] == "EFFECT_UNKNOWN"
    held = await replay(world, task["task_id"])
    assert (held["verdict"], held["stopped_at"]) == ("same", "model 1/tool 1")
    assert verdicts(held) == {"model 1": "same", "model 1/tool 1": "no_outcome"}
    site.silent = False
    Script(upstream, get(site))  # and then nothing: the provider fails
    partial = await think(world)
    assert partial["status"] == "failed"
    report = await replay(world, partial["task_id"])
    assert (report["verdict"], report["stopped_at"], report["difference"]) == ("same", "model 2", None)


@requirement("execution.replay")
async def test_another_limit_ends_a_run_earlier_or_later(world: World, upstream: Upstream, site: Site) -> None:
    await thinker(world, site, max_calls=2)
    Script(upstream, get(site), get(site), "Never said.")
    task = await think(world)
    assert task["error"]["code"] == "LIMIT_REACHED"
    assert (await replay(world, task["task_id"]))["verdict"] == "same"
    later = await replay(world, task["task_id"], agent_id=await another(world, site, max_calls=9))
    assert "ended with LIMIT_REACHED, and now continues with model 3" in later["difference"]
    earlier = await replay(world, task["task_id"], agent_id=await another(world, site, max_calls=1))
    assert verdicts(earlier) == {
        "model 1": "same",
        "model 1/tool 1": "same",
        "model 2": "not_reached",
        "model 2/tool 1": "not_reached",
    }


@requirement("execution.replay")
async def test_steps_of_another_task_are_not_compared(world: World, upstream: Upstream, site: Site) -> None:
    await thinker(world, site)
    Script(upstream, get(site), "It is 41.", "It is 42.")
    first = await think(world)
    other = await another(world, site, model="openai/sea-small", system_prompt="Hurry.")
    answer = await world.admin.post(
        f"/api/v1/tasks/{first['task_id']}/rerun", json={"from_step": "model 2", "agent_preference": other}
    )
    second = await world.ended(answer.json()["task_id"])
    report = await replay(world, second["task_id"])
    assert report["verdict"] == "same", report
    assert verdicts(report) == {"model 1": "taken_over", "model 1/tool 1": "taken_over", "model 2": "same"}


@requirement("execution.replay")
async def test_long_outcomes_are_replayed(world: World, upstream: Upstream, site: Site) -> None:
    await thinker(world, site)
    site.words = "x" * 200_000
    Script(upstream, get(site), "It is long.")
    task = await think(world)
    report = await replay(world, task["task_id"])
    assert (report["verdict"], report["result"]) == ("same", task["result"])


@requirement("execution.replay")
async def test_a_run_that_recorded_no_requests_is_not_called_the_same(
    world: World, upstream: Upstream, site: Site
) -> None:
    await thinker(world, site)
    Script(upstream, get(site), "It is 42.")
    task = await think(world)
    # As if an earlier version had recorded it: the events of these steps have no request.
    swap = Sql("update task_steps set event_id = event_id || 'x' where task_id = :task_id")
    await world.kernel.infra.db.write(lambda tx: tx.run(swap, task_id=task["task_id"]), NO_LOCKS)
    report = await replay(world, task["task_id"])
    assert (report["verdict"], verdicts(report)["model 1"]) == ("unknown", "unknown")


@requirement("execution.replay")
async def test_what_cannot_be_replayed_says_why(world: World, upstream: Upstream, site: Site) -> None:
    body = agent_body(site)
    del body["sandbox_whitelist"]
    await world.register(**body)
    upstream.words = ["Forty-two."]
    simple = await think(world)
    assert "has no journal" in await refusal(world, simple["task_id"], 409)
    assert "no agent" in await refusal(world, simple["task_id"], 404, agent_id="nobody")
    worker = await world.register("wanda", capabilities=["dig"])
    dug = await world.submit(type="dig", input="x", required_capabilities=["dig"])
    assert "stentor-worker replay" in await refusal(world, dug, 409)
    assert "can only replay its own runs" in await refusal(world, simple["task_id"], 409, agent_id=worker)
    assert await refusal(world, "unknown", 404)


@requirement("execution.replay")
async def test_a_run_of_a_suspended_agent_can_be_replayed(world: World, upstream: Upstream, site: Site) -> None:
    agent_id = await thinker(world, site)
    beyond = {"name": "write_file", "args": {"path": "/etc/passwd", "content": "x"}}
    Script(upstream, beyond, beyond, beyond, "Never said.")
    task = await think(world)
    assert task["error"]["code"] == "AGENT_QUARANTINED"
    report = await replay(world, task["task_id"])
    assert (report["verdict"], report["agent_id"]) == ("same", agent_id), report


@requirement("execution.replay")
async def test_who_may_not_see_a_task_may_not_replay_it(world: World, upstream: Upstream, site: Site) -> None:
    await thinker(world, site)
    Script(upstream, "It is 42.")
    task = await think(world)
    for path in ("replay", "input"):
        answer = await world.clients["BOB"].get(f"/api/v1/tasks/{task['task_id']}/{path}")
        assert answer.status_code == 404, answer.text


@requirement("execution.replay")
async def test_a_run_in_a_session_is_replayed_with_the_conversation_that_it_had(
    world: World, upstream: Upstream
) -> None:
    await world.register(**agent_body(compact_after_tokens=100) | {"sandbox_whitelist": dict[str, Any]()})
    await world.admin.post("/api/v1/sessions", json={"id": "s"})
    Script(upstream, "First.", "SUMMARY", "Second.", "Third.")
    said = [await think(world, session="s", input=words) for words in ("salt " * 100, "And now?", "Go on.")]
    for task in said:
        report = await replay(world, task["task_id"])
        assert (report["verdict"], report["result"]) == ("same", task["result"]), json.dumps(report)
    assert list(verdicts(await replay(world, said[1]["task_id"]))) == ["summary 1", "model 1"]
    assert len(upstream.asked) == 4
