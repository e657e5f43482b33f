"""The live stream of a task: order, resumption, one terminal frame, generic failures."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, cast

import httpx
import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from stentor.core.db import NO_LOCKS, Database, Sql
from stentor.core.errors import RateLimited, StoreUnavailable
from stentor.core.fanout import Fanout
from stentor.core.fanout import live as core_live
from stentor.core.fanout.live import QUIET_SECONDS, Hub, RemoteWatchers
from stentor.core.runlog import EventDraft, RunLog, RunLogEvent
from stentor.domains.activity import service as activity_service
from stentor.domains.activity.service import ActivityService, no_reports
from stentor.domains.tasks.model import Task, TaskStreamStep
from stentor.web import sse
from stentor.web.sse import SseEvent as WebFrame
from stentor.web.sse import StreamLimit
from tests.conftest import Service, World
from tests.domains.streams import Frame, parse, watch, watched
from tests.patience import soon
from tests.requirements import requirement

END = ("complete", "error")


class LateHub(ActivityService):
    """Reads a task that ends after the first page of its events, with a hub that has not announced it yet."""

    def __init__(self, world: World, end: Callable[[], Any]) -> None:
        super().__init__(world.kernel.infra.db, Hub(), world.kernel.agents.registry.agents, no_reports)
        self._end: Callable[[], Any] | None = end

    async def _read_page(self, tenant: str, task_id: str, after: str) -> tuple[Task | None, list[RunLogEvent]]:
        found = await super()._read_page(tenant, task_id, after)
        if self._end is not None:
            end, self._end = self._end, None
            await end()
        return found


async def talking(world: World) -> tuple[str, int]:
    """An executing task with two tokens; answers its id and epoch."""
    agent = await world.register()
    task_id = await world.submit()
    epoch = int((await world.claim(agent))["epoch"])
    await tell(world, task_id, "tokens", epoch=epoch, tokens=["a", "b"])
    return task_id, epoch


async def tell(world: World, task_id: str, verb: str, **body: Any) -> None:
    answer = await world.admin.post(f"/api/v1/tasks/{task_id}/{verb}", json=body or None)
    assert answer.is_success, answer.text


def event_of(frame: Frame) -> str:
    """Return the event of a frame's id, without the last token before it."""
    return str(frame.id).partition(":")[0]


async def live(world: World, task_id: str, *steps: Callable[[], Any], after: str | None = None) -> list[Frame]:
    """What a reader sees that was there before these steps were taken."""
    reading = asyncio.create_task(watch(world, task_id, after))
    await watched(world)
    for step in steps:
        await step()
    return await reading


async def test_tokens_of_an_attempt_that_ended_elsewhere_are_forgotten(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub, workers = world.kernel.infra.hub, world.kernel.tasks.workers
    agent = await world.register()
    epochs = {}
    for _ in range(2):
        task_id = await world.submit()
        epochs[task_id] = int((await world.claim(agent))["epoch"])
        await tell(world, task_id, "tokens", epoch=epochs[task_id], tokens=["a"])
    ended, running = epochs
    await tell(world, ended, "complete", epoch=epochs[ended], result=1)
    hub.append_token("default", ended, "attempt", "late")
    await workers.drop_ended_tokens()
    assert hub.tokens("default", ended), "its attempt may be another one, which has just begun"
    later = hub._clock() + QUIET_SECONDS
    monkeypatch.setattr(hub, "_clock", lambda: later)
    await workers.drop_ended_tokens()
    assert (hub.tokens("default", ended), len(hub.tokens("default", running)) > 0) == ([], True)


@requirement("activity.stream-events-with-ids")
async def test_a_stream_tells_everything_in_order_and_ends_with_one_terminal_frame(world: World) -> None:
    task_id, epoch = await talking(world)
    frames = await live(
        world,
        task_id,
        lambda: tell(world, task_id, "tokens", epoch=epoch, tokens=["c"]),
        lambda: tell(world, task_id, "complete", epoch=epoch, result="abc"),
    )
    assert [f.event for f in frames] == [
        *("activity", "routing", "activity", "activity"),
        *("token", "token", "token", "activity", "activity", "complete"),
    ]
    assert [f.data["text"] for f in frames if f.event == "token"] == ["a", "b", "c"]
    assert all(f.id for f in frames if f.event not in END)
    events = await world.events(task_id)
    told = [event_of(f) for f in frames if f.event in ("activity", "routing")]
    assert told == [e["event_id"] for e in events]
    assert frames[1].data["decision"]["agent_name"] == frames[1].data["agent_name"] == "ann"
    last = frames[-1].data
    assert (last["task_id"], last["status"], last["agent_name"], last["error"]) == (task_id, "completed", "ann", None)
    assert (last["outcome_class"], last["learning_eligible"]) == ("success", True)


@requirement("activity.stream-events-with-ids")
@pytest.mark.parametrize("how", ["fail", "cancel", "timeout"])
async def test_a_task_that_does_not_complete_ends_with_an_error_frame(world: World, how: str) -> None:
    task_id, epoch = await talking(world)

    async def end() -> None:
        if how == "fail":
            await tell(world, task_id, "fail", epoch=epoch, error={"message": "no", "code": "NO"})
        elif how == "cancel":
            await tell(world, task_id, "cancel")
        else:
            world.clock.advance(seconds=301)
            await world.kernel.tasks.reconciler.tick(0)

    frames = await live(world, task_id, end)
    assert [f.event for f in frames if f.event in END] == ["error"]
    status = {"fail": "failed", "cancel": "cancelled", "timeout": "aborted"}[how]
    assert (frames[-1].data["task_id"], frames[-1].data["status"]) == (task_id, status)
    kinds = [f.data["event_type"] for f in frames if f.event == "activity"]
    assert kinds == [e["event_type"] for e in await world.events(task_id) if e["event_type"] != "routing_decision"]


@requirement("activity.stream-resumes")
async def test_a_reader_resumes_after_any_id_without_a_gap_or_a_repeat(world: World) -> None:
    task_id, epoch = await talking(world)
    whole = await live(world, task_id, lambda: tell(world, task_id, "complete", epoch=epoch, result="ab"))
    for i, frame in enumerate(whole[:-1]):
        rest = await watch(world, task_id, after=frame.id)
        # The attempt is over, so its tokens are gone: the answer stands in the terminal frame.
        expected = [f for f in whole[i + 1 :] if f.event != "token"]
        assert [f._replace(id=event_of(f)) for f in rest] == [f._replace(id=event_of(f)) for f in expected], frame


@requirement("activity.stream-resumes")
async def test_a_reader_resumes_between_tokens_while_the_attempt_runs(world: World) -> None:
    task_id, epoch = await talking(world)

    async def more() -> None:
        await tell(world, task_id, "tokens", epoch=epoch, tokens=["c"])
        await tell(world, task_id, "complete", epoch=epoch, result="abc")

    steps = world.kernel.tasks.activity.stream("default", task_id, None)
    first = [await anext(steps) for _ in range(5)]
    assert isinstance(steps, AsyncGenerator)
    await steps.aclose()
    assert (first[-1].kind, first[-1].data) == ("token", {"text": "a"})
    rest = await live(world, task_id, more, after=first[-1].id)
    assert [f.data["text"] for f in rest if f.event == "token"] == ["b", "c"]
    assert not {f.id for f in rest} & {step.id for step in first}


@requirement("activity.stream-resumes")
async def test_a_reader_resumes_after_an_event_without_the_tokens_before_it(world: World) -> None:
    task_id, epoch = await talking(world)

    async def more() -> None:
        await tell(world, task_id, "tokens", epoch=epoch, tokens=["c"])
        await tell(world, task_id, "complete", epoch=epoch, result="abc")

    steps = world.kernel.tasks.activity.stream("default", task_id, None)
    first = [await anext(steps) for _ in range(6)]
    await tell(world, task_id, "steps", epoch=epoch, key="note", name="note", value=1)
    first.append(await anext(steps))
    assert isinstance(steps, AsyncGenerator)
    await steps.aclose()
    assert (first[-2].kind, first[-1].data["event_type"]) == ("token", "step_completed")
    rest = await live(world, task_id, more, after=first[-1].id)
    assert [f.data["text"] for f in rest if f.event == "token"] == ["c"]


@pytest.mark.parametrize("nonsense", ["x", "zzz", "a:b:c", "a:b:99999999999999", "::", "1:2", "'; --", "%00"])
async def test_an_id_that_makes_no_sense_never_breaks_the_stream(world: World, nonsense: str) -> None:
    task_id = await world.do(await world.register())
    assert (await watch(world, task_id, after=nonsense))[-1].event == "complete"


@requirement("activity.stream-resumes")
async def test_tokens_of_a_lost_attempt_are_not_mixed_with_those_of_the_next(world: World) -> None:
    task_id, _ = await talking(world)
    agent = (await world.task(task_id))["assigned_agent"]

    async def again() -> None:
        world.clock.advance(seconds=31)
        await world.kernel.tasks.reconciler.tick(0)
        epoch = (await world.claim(agent))["epoch"]
        await tell(world, task_id, "tokens", epoch=epoch, tokens=["x", "y"])
        await tell(world, task_id, "complete", epoch=epoch, result="xy")

    frames = await live(world, task_id, again)
    texts = [f.data["text"] for f in frames if f.event == "token"]
    assert texts == ["a", "b", "x", "y"]
    assert len({str(f.id).split(":")[1] for f in frames if f.event == "token"}) == 2
    assert [f.event for f in frames if f.event in END] == ["complete"]


async def test_a_reader_that_is_too_slow_is_cut_with_an_error_and_can_resume(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_live, "MAX_QUEUED", 1_000)
    task_id, epoch = await talking(world)
    steps = world.kernel.tasks.activity.stream("default", task_id, None)
    seen = [await anext(steps) for _ in range(6)]
    for _ in range(2):
        await tell(world, task_id, "tokens", epoch=epoch, tokens=["x"] * 900)
    seen += [step async for step in steps]
    assert [step.kind for step in seen if step.kind in END] == ["error"]
    assert seen[-1].kind == "error"
    rest = await live(
        world, task_id, lambda: tell(world, task_id, "complete", epoch=epoch, result=1), after=seen[-2].id
    )
    tokens = sum(step.kind == "token" for step in seen) + sum(f.event == "token" for f in rest)
    assert (tokens, rest[-1].event) == (1802, "complete")


@requirement("atp.responses-carry-atp-block")
async def test_every_frame_carries_the_envelope_and_a_provenance_id(world: World) -> None:
    agent = await world.register()
    for ok in (True, False):
        task_id = await world.do(agent, ok=ok)
        root = (await world.task(task_id))["provenance_id"]
        frames = await watch(world, task_id)
        assert all(frame.data["atp"]["header"]["context"] == root for frame in frames)
        own = {event["event_id"] for event in await world.events(task_id)}
        assert {frame.data["provenance_id"] for frame in frames} <= own
        assert frames[-1].data["provenance_id"] == root
        again = await watch(world, task_id, after=frames[-2].id)
        assert again == frames[-1:]


@requirement("activity.stream-errors-are-generic")
async def test_a_failure_while_streaming_shows_no_exception(world: World) -> None:
    task_id, epoch = await talking(world)

    async def damage() -> None:
        await world.kernel.infra.db.write(lambda tx: tx.run(Sql("update tasks set metadata = 'secret detail'")))
        world.kernel.infra.hub.publish("default", task_id, [])
        await world.kernel.infra.db.write(lambda tx: world.runlog.append(tx, "default", [ended], task_id=task_id))

    ended = EventDraft("task_failed", "execution", "Failed.")
    frames = await live(world, task_id, damage)
    assert [f.event for f in frames if f.event in END] == ["error"]
    assert frames[-1].data["error"] == sse.FAILED_MESSAGE
    assert set(frames[-1].data) == {"error", "atp", "provenance_id"}
    assert epoch == 1


async def test_a_stream_of_an_unknown_or_foreign_task_is_404(world: World) -> None:
    task_id, _ = await talking(world)
    assert (await world.admin.get("/api/v1/tasks/nobody/stream")).status_code == 404
    assert (await world.clients["OTHER"].get(f"/api/v1/tasks/{task_id}/stream")).status_code == 404


@requirement("activity.stream-resumes")
@pytest.mark.parametrize("after", ["z", "g:a:1", "\0:a:1", "a:b", "ffffffff-ffff-7fff-bfff-ffffffffffff"])
async def test_a_stream_from_an_unknown_place_ends_with_the_task(world: World, after: str) -> None:
    agent = await world.register("ann")
    task_id = await world.submit()
    steps = world.kernel.tasks.activity.stream("default", task_id, after)
    reader = asyncio.create_task(read_all(steps))
    await watched(world)
    claim = await world.claim(agent)
    done = {"epoch": claim["epoch"], "result": "hi"}
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/complete", json=done)).status_code == 200
    await soon(reader.done)
    kinds = [step.kind for step in await reader]
    assert kinds[-1] == "complete"
    assert ("activity" in kinds) is not after.startswith("f"), "what is no id starts from the beginning"


async def read_all(steps: AsyncIterator[TaskStreamStep]) -> list[TaskStreamStep]:
    return [step async for step in steps]


@requirement("activity.stream-ends-with-key")
async def test_a_stream_ends_with_its_key_before_the_next_event(world: World) -> None:
    task_id, epoch = await talking(world)
    made = (await world.admin.post("/api/v1/keys", json={"name": "dana", "role": "viewer"})).json()
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(world.app), base_url="http://stentor.test", headers={"X-API-Key": made["key"]}
    ) as client:
        reading = asyncio.create_task(client.get(f"/api/v1/tasks/{task_id}/stream"))
        await watched(world)
        await world.admin.post("/api/v1/keys/dana/revoke")
        await tell(world, task_id, "tokens", epoch=epoch, tokens=["secret"])
        found = parse((await reading).text)
    assert (found[-1].event, found[-1].data["error"]) == ("error", sse.ENDED_MESSAGE)
    assert [f.data["text"] for f in found if f.event == "token"] == ["a", "b"]


@requirement("activity.stream-ends-with-key")
async def test_an_agents_stream_ends_when_its_task_goes_to_another_key(
    world: World, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity_service, "VISIBILITY_SECONDS", 0.0)
    own = await world.register(key_name="bob")
    task_id = await world.submit()
    epoch = int((await world.claim(own))["epoch"])
    reading = asyncio.create_task(world.clients["BOB"].get(f"/api/v1/tasks/{task_id}/stream"))
    await watched(world)
    await db.write(lambda tx: tx.run(Sql("update agents set key_name = 'other'")), NO_LOCKS)
    await tell(world, task_id, "tokens", epoch=epoch, tokens=["secret"])
    found = parse((await reading).text)
    assert (found[-1].event, found[-1].data["error"]) == ("error", activity_service.NOT_VISIBLE_MESSAGE)
    assert "token" not in [f.event for f in found]


@requirement("activity.stream-ends-with-key")
async def test_an_agent_sees_nothing_of_what_another_one_makes_of_its_task(world: World) -> None:
    own = await world.register(key_name="bob")
    await world.admin.post(f"/api/v1/agents/{own}/claims", json={})  # it is online
    task_id = await world.submit()
    other = await world.register(key_name="carol")
    await world.admin.post(f"/api/v1/agents/{other}/claims", json={})
    reading = asyncio.create_task(world.clients["BOB"].get(f"/api/v1/tasks/{task_id}/stream"))
    await watched(world)
    left = await world.clients["BOB"].post(f"/api/v1/agents/{own}/leave")
    assert left.is_success, left.text
    claim = await world.claim(other, wait_seconds=30)
    assert claim["task_id"] == task_id
    await tell(world, task_id, "tokens", epoch=claim["epoch"], tokens=["secret"])
    await tell(world, task_id, "complete", epoch=claim["epoch"], result="secret")
    text = (await reading).text
    assert parse(text)[-1].data["error"] == activity_service.NOT_VISIBLE_MESSAGE
    assert "secret" not in text
    assert other not in text


@requirement("activity.stream-ends-with-key")
async def test_an_idle_stream_whose_key_has_ended_ends_with_the_next_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.01)
    sent: list[bytes] = []

    async def frames() -> AsyncIterator[WebFrame]:
        await asyncio.Event().wait()
        yield WebFrame("complete", {})

    async def is_unchanged() -> bool:
        return False

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    scope = {"type": "http", "asgi": {"spec_version": "2.4"}, "state": {sse.CALLER_CHECK: is_unchanged}}
    await sse.EventStreamResponse(frames(), StreamLimit(1), "k", {"n": 1})(scope, nobody, send)
    (found,) = parse(b"".join(sent).decode())
    assert (found.event, found.data) == ("error", {"n": 1, "error": sse.ENDED_MESSAGE})


@requirement("activity.stream-heartbeats")
async def test_an_idle_stream_sends_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.01)
    go_on = asyncio.Event()

    async def frames() -> AsyncIterator[WebFrame]:
        await go_on.wait()
        yield WebFrame("complete", {}, "1")

    chunks = sse.EventStreamResponse(frames(), StreamLimit(1), "k").body_iterator
    first = await anext(aiter(chunks))
    assert first == b": heartbeat\n\n"
    go_on.set()
    rest = [bytes(chunk) async for chunk in chunks]  # pyrefly: ignore[bad-argument-type] - text or bytes by its type, bytes here
    assert [f.event for f in parse(b"".join(rest).decode())] == ["complete"]


async def test_a_source_that_fails_after_its_client_has_gone_is_not_reported_as_a_bug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.01)
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    ended = asyncio.Event()

    async def frames() -> AsyncIterator[bytes]:
        try:
            yield await asyncio.Future[bytes]()
        except asyncio.CancelledError:
            ended.set()
            raise StoreUnavailable("The outcome cannot be recorded.") from None

    async def close() -> None:
        pass

    chunks = sse.RawStreamResponse(frames(), StreamLimit(1), "k", lambda error: b"", close).body_iterator
    assert isinstance(chunks, AsyncGenerator)
    assert await anext(chunks) == sse.HEARTBEAT_COMMENT
    await chunks.aclose()
    await ended.wait()
    gc.collect()
    assert not reported


async def test_what_a_slow_client_has_not_read_is_one_chunk_and_holds_its_source_up() -> None:
    read: list[bytes] = []

    async def frames() -> AsyncIterator[bytes]:
        for n in range(5 * sse.READ_AHEAD):
            read.append(f"data: {n}\n\n".encode())
            yield read[-1]

    async def close() -> None:
        pass

    response = sse.RawStreamResponse(frames(), StreamLimit(1), "k", lambda error: b"", close)
    chunks = cast(AsyncGenerator[bytes], response.body_iterator)
    sent = [await anext(chunks)]
    for _ in range(3 * sse.READ_AHEAD):
        await asyncio.sleep(0)
    assert len(read) <= 2 * sse.READ_AHEAD
    sent.append(await anext(chunks))
    assert sent[1].count(b"data: ") > 1
    sent += [chunk async for chunk in chunks]
    assert b"".join(sent) == b"".join(read)
    assert len(read) == 5 * sse.READ_AHEAD


async def test_a_key_has_only_so_many_streams_open() -> None:
    async def frames() -> AsyncIterator[WebFrame]:
        yield WebFrame("complete", {})

    limit = StreamLimit(1)
    first = sse.EventStreamResponse(frames(), limit, "k")
    with pytest.raises(RateLimited, match="event streams open"):
        sse.EventStreamResponse(frames(), limit, "k")
    await first({"type": "http", "asgi": {"spec_version": "2.4"}}, nobody, swallow)
    await sse.EventStreamResponse(frames(), limit, "k")({"type": "http"}, nobody, swallow)


async def test_a_reader_that_is_gone_before_the_first_frame_gives_its_place_back() -> None:
    async def frames() -> AsyncIterator[WebFrame]:
        yield WebFrame("complete", {})

    async def gone(message: Message) -> None:
        raise OSError

    limit = StreamLimit(1)
    with pytest.raises(ClientDisconnect):
        await sse.EventStreamResponse(frames(), limit, "k")(
            {"type": "http", "asgi": {"spec_version": "2.4"}}, nobody, gone
        )
    assert sse.EventStreamResponse(frames(), limit, "k")


async def test_a_stream_that_is_never_sent_gives_its_slot_back() -> None:
    async def frames() -> AsyncIterator[WebFrame]:
        yield WebFrame("complete", {})

    async def raw_frames() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"

    async def close() -> None:
        pass

    limit = StreamLimit(1)
    response = sse.EventStreamResponse(frames(), limit, "k")
    with pytest.raises(RateLimited):
        limit.check("k")
    del response
    limit.check("k")
    raw_response = sse.RawStreamResponse(raw_frames(), limit, "k", lambda error: b"", close)
    with pytest.raises(RateLimited):
        limit.check("k")
    del raw_response
    limit.check("k")


async def nobody() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def swallow(message: Message) -> None:
    pass


def start(client: httpx.Client) -> tuple[str, str]:
    """Register a worker and submit a task for it; answers both ids."""
    made = client.post("/api/v1/registry/agents", json={"name": "ann", "capabilities": ["echo"]}).json()
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    return made["agent_id"], client.post("/api/v1/tasks", json=body).json()["task_id"]


@requirement("activity.stream-reader-may-leave", "activity.stream-resumes")
def test_the_work_goes_on_when_the_reader_leaves_and_the_reader_may_come_back(serve: Callable[..., Service]) -> None:
    service = serve()
    with service.client() as client:
        agent, task_id = start(client)
        claim = client.post(f"/api/v1/agents/{agent}/claims", json={}).json()["tasks"][0]
        path = f"/api/v1/tasks/{task_id}"
        client.post(f"{path}/tokens", json={"epoch": claim["epoch"], "tokens": ["a"]})
        seen = ""
        with client.stream("GET", f"{path}/stream") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for text in answer.iter_text():
                seen += text
                if "event: token" in seen:
                    break
        client.post(f"{path}/tokens", json={"epoch": claim["epoch"], "tokens": ["b"]})
        last = parse(seen.rsplit("\n\n", 1)[0])[-1]
        assert client.post(f"{path}/complete", json={"epoch": claim["epoch"], "result": "ab"}).status_code == 200
        rest = parse(client.get(f"{path}/stream", headers={"Last-Event-ID": str(last.id)}).text)
        assert [f.data["event_type"] for f in rest if f.event == "activity"] == ["task_completed", "learning_updated"]
        assert [f.event for f in rest if f.event in END] == ["complete"]
        assert client.get(path).json()["result"] == "ab"


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
async def test_however_a_task_ends_its_tokens_are_forgotten(world: World, end: str) -> None:
    task_id, epoch = await talking(world)
    assert world.kernel.infra.hub.tokens("default", task_id)
    held: dict[str, Any] = {"epoch": epoch}
    about = {"complete": held | {"result": 1}, "fail": held | {"error": {"message": "no"}}, "cancel": {}}[end]
    await tell(world, task_id, end, **about)
    assert not world.kernel.infra.hub.tokens("default", task_id)


@requirement("activity.stream-events-with-ids")
async def test_events_of_an_end_that_is_read_before_it_is_announced_are_streamed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.register()
    task_id = await world.submit()
    monkeypatch.setattr(activity_service, "MAX_EVENTS", 1)
    service = LateHub(world, lambda: tell(world, task_id, "cancel"))
    kinds = [step.data.get("event_type", step.kind) async for step in service.stream("default", task_id, None)]
    assert kinds[-3:] == ["task_cancelled", "learning_skipped", "error"]


@requirement("scale.streams-across-instances")
async def test_a_request_with_tokens_is_answered_when_they_have_been_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = world.kernel.infra.hub
    waits: list[tuple[str, str, list[str]]] = []

    async def wait(tenant: str, task_id: str) -> None:
        waits.append((tenant, task_id, [token.text for token in hub.tokens(tenant, task_id)]))

    monkeypatch.setattr(hub, "wait_tokens_sent", wait)
    task_id, _ = await talking(world)
    assert waits == [("default", task_id, ["a", "b"])]


@requirement("activity.stream-events-with-ids")
async def test_events_reach_a_reader_if_later_ones_are_committed_or_announced_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model calls have ids from their beginnings, and a worker's requests may go to several processes."""
    hub, db = world.kernel.infra.hub, world.kernel.infra.db
    task_id, epoch = await talking(world)
    early, elsewhere, late = (EventDraft("llm_called", "llm", "Called.") for _ in range(3))

    async def record(draft: EventDraft, hub: Hub) -> None:
        await db.write(lambda tx: RunLog(hub).append(tx, "default", [draft], task_id=task_id), locks=NO_LOCKS)

    # As with several processes, none of which says anything.
    monkeypatch.setattr(hub, "_remote", RemoteWatchers(Fanout(cast("Any", object())), hub))
    frames = await live(
        world,
        task_id,
        lambda: record(elsewhere, Hub()),
        lambda: record(late, hub),
        lambda: record(early, hub),
        lambda: tell(world, task_id, "complete", epoch=epoch, result=1),
    )
    told = [event_of(f) for f in frames if f.event == "routing"]
    told += [f.data["event_id"] for f in frames if f.event == "activity"]
    assert sorted(told) == [e["event_id"] for e in await world.events(task_id)]
    assert {early.event_id, elsewhere.event_id, late.event_id} < set(told)
