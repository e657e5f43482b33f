"""In which order messages are carried out, what a stop and an outage leave, and the stream of an answer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from stentor.core.clock import SECOND
from stentor.core.db import Sql
from tests.conftest import World
from tests.domains.messaging.conftest import Post, form, task
from tests.domains.messaging.test_agents import all_events
from tests.domains.streams import Frame, parse, watched
from tests.patience import soon
from tests.requirements import requirement

QUESTION = {"text": "Why is the sea salty?"}
"""For the memory, which these worlds have switched off."""


async def started(world: World) -> list[str]:
    """The messages in the order in which they were taken."""
    events = [event for event in await all_events(world) if event["event_type"] == "message_started"]
    return [json.loads(event["metadata"])["message_id"] for event in events]


@requirement("atp.carried-out-in-order")
async def test_messages_are_carried_out_by_priority_and_then_by_age(post: Post) -> None:
    carrier = post.world.kernel.messaging.processor
    await carrier.stop()
    sent: dict[str, list[str]] = {}
    for priority in ("low", "critical", "normal", "high", "critical", "low", "normal"):
        message_id = await post.send({}, "registry", "list", priority=priority)
        sent.setdefault(priority, []).append(message_id)
        post.world.clock.advance(seconds=1)
    expected = [one for priority in ("critical", "high", "normal", "low") for one in sent[priority]]
    await carrier.start()
    for message_id in expected:
        await post.over(message_id)
    assert await started(post.world) == expected


async def move(world: World, statement: str) -> None:
    await world.kernel.infra.db.write(lambda tx: tx.run(Sql(statement)))


@requirement("atp.carried-out-once")
async def test_what_a_dead_process_had_in_hand_is_carried_out_once_by_the_next(full: Post) -> None:
    carrier = full.world.kernel.messaging.processor
    await carrier.stop()
    message_id = await full.send({"name": "ann"}, "registry", "register")
    head = "update atp_messages set status = 'executing', epoch = 1, lease_until = 1"
    await move(full.world, head)
    await carrier.start()
    assert (await full.over(message_id))["status"] == "completed"

    async def registered() -> int:
        return int((await full.world.admin.get("/api/v1/registry/agents")).json()["total"])

    # The list is of what this process knows, a moment after the commit that ends the message.
    assert await soon(registered) == 1
    kinds = [event["event_type"] for event in await all_events(full.world) if event["event_type"].startswith("message")]
    assert kinds == ["message_received", "message_requeued", "message_started", "message_completed"]


async def test_a_malformed_message_of_a_dead_process_does_not_keep_the_next_from_starting(full: Post) -> None:
    carrier = full.world.kernel.messaging.processor
    await carrier.stop()
    await full.send({"name": "ann"}, "registry", "register")
    good = await full.send({"name": "bob"}, "registry", "register")
    await move(full.world, "update atp_messages set status = 'executing', epoch = 1, lease_until = 1")
    await move(full.world, f"update atp_messages set header = '[' where message_id <> '{good}'")
    await carrier.start()
    assert (await full.over(good))["status"] == "completed"


@requirement("atp.carried-out-once")
async def test_a_write_that_was_made_before_the_kill_is_not_made_again(full: Post) -> None:
    note = {"path": "a.md", "content": "mine\n"}
    carrier, finish = full.world.kernel.messaging.processor, full.world.kernel.messaging.processor._commit

    async def never(*args: Any) -> None:
        raise asyncio.CancelledError

    carrier._commit = never  # pyrefly: ignore[bad-assignment, method-assign] - a kill at this step
    message_id = await full.send(note, "memory", "upsert")

    async def written() -> bool:
        return "memory_written" in [event["event_type"] for event in await all_events(full.world)]

    await soon(written)
    await carrier.stop()
    carrier._commit = finish  # pyrefly: ignore[method-assign] - a kill at this step
    later = {"operation": "write", "document": {"path": "a.md", "content": "edited since\n"}}
    assert (await full.world.admin.post("/api/v1/memory/write", json=later)).status_code == 200
    await move(full.world, "update atp_messages set lease_until = 1 where status = 'executing'")
    await carrier.start()
    answer = await full.over(message_id)
    assert (answer["status"], answer["response"]["status"]) == ("completed", "success")
    read = await full.world.admin.get("/api/v1/memory/read/exact", params={"path": "a.md"})
    assert read.json()["document"]["content"] == "edited since\n"


@requirement("atp.carried-out-once")
async def test_a_message_of_a_dead_process_is_not_held_for_as_long_as_the_clock_is_set_back(full: Post) -> None:
    carrier, clock = full.world.kernel.messaging.processor, full.world.clock
    await carrier.stop()
    message_id = await full.send({"name": "ann"}, "registry", "register")
    lease_until = clock.now() + carrier._lease
    await move(full.world, f"update atp_messages set status = 'executing', epoch = 1, lease_until = {lease_until}")
    await carrier._tick(1)
    for seconds, status in ((-3_600, "executing"), (carrier._lease // SECOND, "executing"), (1, "queued")):
        clock.advance(seconds=seconds)
        await carrier._tick(1)
        assert (await full.message(message_id))["status"] == status
    await carrier.start()
    assert (await full.over(message_id))["status"] == "completed"


async def test_a_task_that_ended_while_nobody_looked_is_still_the_answer(post: Post) -> None:
    ann = await post.world.register("ann")
    message_id = await post.send(task())
    claim = await post.claimed(ann)

    async def routed() -> bool:
        return (await post.message(message_id))["route"] is not None

    await soon(routed)
    carrier = post.world.kernel.messaging.processor
    await carrier.stop()
    post.world.kernel.messaging.processor._lifecycle._awaited.clear()
    await post.complete(claim)
    assert (await post.ask(f"response/{message_id}")).status_code == 404
    await carrier.start()
    assert (await post.over(message_id))["response"]["result"] == "hi"


async def test_an_outage_of_the_run_log_delays_messages_and_loses_none(post: Post) -> None:
    carrier = post.world.kernel.messaging.processor
    await carrier.stop()
    message_id = await post.send({"name": "ann"}, "registry", "register")
    post.world.runlog.broken = True
    await carrier.start()
    await asyncio.sleep(0.05)
    assert (await post.message(message_id))["status"] == "queued"
    post.world.runlog.broken = False
    assert (await post.over(message_id))["status"] == "completed"


@pytest.mark.parametrize("move_to", ["completed", "queued"])
async def test_the_database_itself_refuses_moves_that_are_not_drawn(post: Post, move_to: str) -> None:
    await post.over(await post.send(QUESTION, "memory", "query"))
    with pytest.raises(Exception, match="a message does not make this move"):
        await move(post.world, f"update atp_messages set status = '{move_to}'")


async def stream(post: Post, message_id: str, client: str = "ADMIN") -> list[Frame]:
    answer = await post.ask(f"response/{message_id}", client, headers={"Accept": "text/event-stream"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return parse(answer.text)


@requirement("atp.mode-semantics", "atp.responses-carry-atp-block", "atp.response-stream")
async def test_a_stream_message_sends_tokens_and_every_frame_carries_the_atp_block(post: Post) -> None:
    ann = await post.world.register("ann")
    message_id = await post.send(task(), mode="stream")
    claim = await post.claimed(ann)
    reading = asyncio.create_task(stream(post, message_id))
    await watched(post.world)
    tokens = {"epoch": claim["epoch"], "tokens": ["Once ", "upon"]}
    assert (await post.world.admin.post(f"/api/v1/tasks/{claim['task_id']}/tokens", json=tokens)).status_code == 200
    await post.complete(claim, "Once upon")
    frames = await reading
    assert [frame.data["text"] for frame in frames if frame.event == "token"] == ["Once ", "upon"]
    assert frames[-1].event == "complete"
    answer = await post.over(message_id)
    for frame in frames:
        assert frame.data["atp"]["header"] == form("", mode="stream")["header"]
        assert frame.data["provenance_id"] == answer["provenance_id"]
        assert (frame.event in ("routing", "activity", "complete")) == ("event_provenance_id" in frame.data)


async def test_the_stream_of_a_message_without_a_task_is_its_answer(post: Post) -> None:
    done = await post.send({}, "registry", "list")
    (frame,) = await stream(post, done)
    assert (frame.event, frame.data["response"]["total"]) == ("complete", 0)
    (frame,) = await stream(post, await post.send(QUESTION, "memory", "query"))
    assert (frame.event, frame.data["response"]["error"]["code"]) == ("error", "NOT_IMPLEMENTED")
    foreign = await post.ask(f"response/{done}", "OTHER", headers={"Accept": "text/event-stream"})
    assert foreign.status_code == 404


@requirement("routing.many-at-once")
async def test_tasks_of_many_messages_at_once_do_not_all_try_the_same_agent(post: Post) -> None:
    agents = [await post.world.register(name) for name in ("a", "b", "c")]
    carrier = post.world.kernel.messaging.processor
    await carrier.stop()
    message_ids = [await post.send(task(), mode="async") for _ in range(12)]
    await carrier.start()
    answers = [await post.known(message_id) for message_id in message_ids]
    tasks = [await post.world.task(answer["response"]["task_id"]) for answer in answers]
    chosen = Counter(each["assigned_agent"] for each in tasks)
    assert min(chosen[agent] for agent in agents) >= 1, chosen
