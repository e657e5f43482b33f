"""Agents behind an HTTP endpoint, against a real server on loopback."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import StreamReader, web

from stentor.domains.execution.runtimes import http
from stentor.domains.execution.runtimes.http import MAX_RESPONSE_BYTES
from stentor.domains.registry.model import Runtime
from stentor.domains.registry.presence import MAX_FAILURES
from stentor.domains.registry.service import AgentDraft
from tests.conftest import MakeWorld, World
from tests.domains.endpoint import Endpoint, Handler, answering, hanging, serving, streaming
from tests.domains.streams import at_rest, watch, watched
from tests.patience import soon
from tests.requirements import requirement

Place = Callable[[Handler], Awaitable[tuple[World, Endpoint]]]


@pytest.fixture
async def place(make_world: MakeWorld) -> Any:
    """Builds an endpoint and a world in which the agent `remote` is called there."""
    async with AsyncExitStack() as stack:

        async def build(handler: Handler) -> tuple[World, Endpoint]:
            endpoint = await stack.enter_async_context(serving(handler))
            world = await make_world(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{endpoint.port}")
            await world.register("remote", runtime={"kind": "http", "endpoint": endpoint.url})
            return world, endpoint

        yield build


def event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


@requirement("execution.http-runtime", "execution.idempotency-key-to-agent")
async def test_the_task_is_posted_and_the_json_answer_becomes_the_result(place: Place) -> None:
    world, endpoint = await place(answering({"result": {"n": 1}, "performance": 0.5}))
    task_id = await world.submit(input={"text": "x"}, timeout_seconds=60)
    task = await world.ended(task_id)
    assert (task["status"], task["result"], task["outcome_class"]) == ("completed", {"n": 1}, "success")
    (call,) = endpoint.calls
    assert call["headers"]["Idempotency-Key"] == f"{task_id}:1"
    assert {k: call["body"][k] for k in ("task_id", "epoch", "type", "input", "timeout_seconds")} == {
        "task_id": task_id,
        "epoch": 1,
        "type": "echo",
        "input": {"text": "x"},
        "timeout_seconds": 60,
    }
    assert "admin-key" not in str(call)


@requirement("atp.input-without-head")
async def test_an_endpoint_gets_no_head_of_a_message(place: Place) -> None:
    world, endpoint = await place(answering({"result": 1}))
    head = "#Mode: direct\n#Context: secret\n#Priority: low\n#ActionType: execute\n#TargetZone: kernel\n\n"
    await world.ended(await world.submit(input=f"{head}The text."))
    assert endpoint.calls[0]["body"]["input"] == "The text."


@requirement("execution.http-runtime", "execution.tokens")
async def test_an_event_stream_is_passed_on_token_by_token(place: Place) -> None:
    parts = [event("token", {"text": "Hel"}), b": comment\n\n", event("token", {"text": "lo"})]
    go_on = asyncio.Event()
    world, _ = await place(streaming(*parts, event("complete", {"result": "Hello"}), after=go_on))
    reading = asyncio.create_task(watch(world, task_id := await world.submit()))
    await watched(world)
    go_on.set()
    frames = await reading
    assert [f.data["text"] for f in frames if f.event == "token"] == ["Hel", "lo"]
    assert (await world.task(task_id))["result"] == "Hello"


@requirement("execution.http-runtime")
@pytest.mark.parametrize("cut", [1, 7, 65_536])
async def test_a_stream_may_come_in_any_pieces_and_with_long_lines(place: Place, cut: int) -> None:
    long = "x" * (900_000 if cut > 100 else 50)
    whole = event("token", {"text": "né"}).replace(b"\n", b"\r\n") + event("complete", {"result": long})
    world, _ = await place(streaming(*(whole[i : i + cut] for i in range(0, len(whole), cut))))
    task = await world.ended(await world.submit())
    assert (task["status"], task["result"]) == ("completed", long)


FAILURES = [
    (answering({"oops": 1}, 500), "agent_failure", "ENDPOINT_STATUS"),
    (answering({"oops": 1}, 404), "agent_failure", "ENDPOINT_STATUS"),
    (answering({"oops": 1}, 503), "provider_failure", "AGENT_BUSY"),
    (answering({"oops": 1}, 429), "provider_failure", "AGENT_BUSY"),
    (answering({"oops": 1}), "agent_failure", "ANSWER_INVALID"),
    (answering({"result": [[]] * 200_001}), "agent_failure", "ANSWER_INVALID"),
    (streaming(event("complete", {"result": [[]] * 200_001})), "agent_failure", "ANSWER_INVALID"),
    (answering([1]), "agent_failure", "ANSWER_INVALID"),
    (answering({"result": 1, "performance": 7}), "agent_failure", "ANSWER_INVALID"),
    (answering({"result": 1, "performance": True}), "agent_failure", "ANSWER_INVALID"),
    (answering({"result": 1}, 302, Location="/elsewhere"), "agent_failure", "ENDPOINT_STATUS"),
    (streaming(b"event: token\ndata: {\n\n"), "agent_failure", "ANSWER_INVALID"),
    (streaming(b"<p>Hello</p>", kind="text/html"), "agent_failure", "ANSWER_INVALID"),
    (streaming(b'{"result": "\xff"}', kind="application/json"), "agent_failure", "ANSWER_INVALID"),
    (streaming(event("token", {"text": "x"})), "agent_failure", "ANSWER_INVALID"),
    (streaming(event("error", {"secret": "x"})), "agent_failure", "AGENT_ERROR"),
]


@requirement("execution.http-runtime", "tasks.outcome-classes")
@pytest.mark.parametrize(("handler", "outcome", "code"), FAILURES)
async def test_every_failure_of_an_endpoint_has_its_outcome(
    place: Place, handler: Handler, outcome: str, code: str
) -> None:
    world, endpoint = await place(handler)
    task = await world.ended(await world.submit())
    assert (task["status"], task["outcome_class"], task["error"]["code"]) == ("failed", outcome, code)
    assert "secret" not in str(task)
    assert len(endpoint.calls) == 1


@requirement("learning.only-eligible-outcomes")
async def test_a_busy_endpoint_is_not_held_against_its_agent(place: Place) -> None:
    world, _ = await place(answering({}, 503))
    task = await world.ended(await world.submit())
    agent = task["assigned_agent"]
    weights = await world.admin.get("/api/v1/hebbian/weights", params={"agent_id": agent})
    assert weights.json()["weights"] == {}


@requirement("execution.http-runtime-guarded")
async def test_a_redirect_is_not_followed(place: Place) -> None:
    world, endpoint = await place(answering({"result": 1}, 307, Location="/elsewhere"))
    assert (await world.ended(await world.submit()))["status"] == "failed"
    assert [call["path"] for call in endpoint.calls] == ["/do"]


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("character", [b" ", b": x" * 333 + b"\n"], ids=["one-line", "lines"])
async def test_an_answer_that_is_too_large_fails_the_attempt(place: Place, kind: str, character: bytes) -> None:
    chunk = character * (1_000_000 // len(character))

    whole = [chunk] * (MAX_RESPONSE_BYTES // len(chunk) + 2)
    world, _ = await place(streaming(*whole, kind=kind))
    task = await world.ended(await world.submit())
    assert (task["status"], task["error"]["code"]) == ("failed", "ANSWER_TOO_LARGE")


async def test_an_event_of_many_lines_takes_time_linear_in_its_length() -> None:
    """In quadratic time, in which nothing else would run, it would take minutes."""
    protocol: Any = SimpleNamespace(_reading_paused=False, resume_reading=lambda **_: None)
    content = StreamReader(protocol, 2**30, loop=asyncio.get_running_loop())
    lines = b"data:111111,\n" * 5_000
    for part in (b'event: complete\ndata:{"result":[\n', *[lines] * 150, b"data:1]}\n\n"):
        content.feed_data(part)
    content.feed_eof()
    begun_at = time.process_time()
    outcome = await http._read_stream(cast(Any, SimpleNamespace(content=content)), lambda _: None)
    assert len(outcome.result) == 750_001
    assert time.process_time() - begun_at < 60


@requirement("tasks.timeout-aborts")
async def test_an_endpoint_that_hangs_is_aborted_and_its_connection_closed(place: Place) -> None:
    world, endpoint = await place(hanging)
    while not endpoint.arrived.is_set():  # on a busy machine the time may be over before the endpoint is asked
        task = await world.ended(await world.submit(timeout_seconds=1))
        assert (task["status"], task["error"]["code"], task["outcome_class"]) == ("aborted", "TIMEOUT", "timeout")
    await asyncio.wait_for(endpoint.broken_off.wait(), 60)


@requirement("execution.cancel-reaches-runtime")
async def test_a_cancel_closes_the_connection_to_the_endpoint(place: Place) -> None:
    world, endpoint = await place(hanging)
    task_id = await world.submit()
    await asyncio.wait_for(endpoint.arrived.wait(), 60)
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/cancel")).status_code == 200
    await asyncio.wait_for(endpoint.broken_off.wait(), 60)
    assert (await world.task(task_id))["status"] == "cancelled"
    await at_rest(world)


async def test_a_lost_lease_stops_the_old_attempt_and_starts_a_new_one(place: Place) -> None:
    world, endpoint = await place(hanging)
    task_id = await world.submit()
    await asyncio.wait_for(endpoint.arrived.wait(), 60)
    endpoint.handler = answering({"result": "second"})
    world.clock.advance(seconds=61)
    await world.kernel.tasks.reconciler.tick(1)
    task = await world.ended(task_id)
    assert (task["status"], task["result"], task["attempts"]) == ("completed", "second", 2)
    await asyncio.wait_for(endpoint.broken_off.wait(), 60)


async def test_the_lease_of_work_inside_the_service_is_renewed(place: Place) -> None:
    world, endpoint = await place(hanging)
    task_id = await world.submit()
    await asyncio.wait_for(endpoint.arrived.wait(), 60)
    for _ in range(4):
        world.clock.advance(seconds=40)
        await world.kernel.tasks.lease_renewer.renew()
        await world.kernel.tasks.reconciler.tick(0)
    assert (await world.task(task_id))["status"] == "executing"
    assert len(endpoint.calls) == 1


async def test_an_endpoint_that_is_not_there_fails_the_attempt(make_world: MakeWorld) -> None:
    async with serving(answering({"result": 1})) as gone:
        url = gone.url
    world = await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1")
    await world.register(runtime={"kind": "http", "endpoint": url})
    task = await world.ended(await world.submit())
    assert (task["status"], task["error"]["code"]) == ("failed", "ENDPOINT_UNREACHABLE")


@requirement("routing.offline-workers")
@pytest.mark.parametrize("repeat", ["send", "hold"])
async def test_an_endpoint_that_accepts_no_connection_in_time_is_unreachable(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, repeat: str
) -> None:
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the handshake of TLS gets no answer
        port = silent.getsockname()[1]
        world = await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1")
        runtime = {"kind": "http", "endpoint": f"https://127.0.0.1:{port}/", "options": {"repeat": repeat}}
        agent = await world.register(runtime=runtime)
        for _ in range(MAX_FAILURES):
            task = await world.ended(await world.submit())
            assert (task["status"], task["error"]["code"]) == ("failed", "ENDPOINT_UNREACHABLE")
    assert world.kernel.agents.presence.offline_endpoints() == [agent]


async def test_a_task_that_waits_for_a_connection_of_the_service_is_not_failed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = asyncio.Event()
    world, endpoint = await place(streaming(json.dumps({"result": 1}).encode(), kind="application/json", after=free))
    outbound = world.kernel.infra.outbound
    outbound._max_connections = 1
    first = await world.submit()
    await asyncio.wait_for(endpoint.arrived.wait(), 60)
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.0001)
    second = await world.submit()
    connector = outbound.session.connector
    assert connector is not None
    await soon(lambda: connector._waiters)
    assert (await world.task(second))["status"] == "executing"
    free.set()
    assert [(await world.ended(task))["status"] for task in (first, second)] == ["completed", "completed"]


PRIVATE = [
    "http://127.0.0.1/",
    "http://localhost:8080/",
    "http://10.0.0.1/",
    "http://192.168.1.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[::1]/",
    "http://[fd00::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://224.0.0.1/",
    "http://0.0.0.0/",
    "http://100.64.0.1/",
    "http://localhost./",
    "http://2130706433/",
    "http://127.1/",
    "http://0x7f.0.0.1/",
    "http://0177.0.0.1./",
    "http://[::127.0.0.1]/",
    "http://[2002:7f00:1::]/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "http://user:pass@example.com/",
    "http://",
    "not a url",
    "http://[::1",
    "http://example.com:99999/",
]


@requirement("execution.http-runtime-guarded")
@pytest.mark.parametrize("url", PRIVATE)
async def test_a_private_or_strange_endpoint_is_refused_at_registration(world: World, url: str) -> None:
    body = {"name": "ann", "runtime": {"kind": "http", "endpoint": url}}
    answer = await world.admin.post("/api/v1/registry/agents", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@requirement("execution.http-runtime-guarded")
async def test_a_name_that_resolves_to_a_private_address_is_refused_when_called(world: World) -> None:
    async with serving(answering({"result": "inside"})) as endpoint:
        runtime = Runtime("http", endpoint=f"http://localhost:{endpoint.port}/")
        await world.kernel.agents.registry.register("default", AgentDraft("sly", ("echo",), runtime=runtime), "system")
        task = await world.ended(await world.submit())
        assert (task["status"], task["error"]["code"]) == ("failed", "ENDPOINT_REFUSED")
        assert endpoint.calls == []


@requirement("execution.http-runtime-guarded")
async def test_an_address_that_is_no_longer_allowed_is_refused_when_called(make_world: MakeWorld) -> None:
    async with serving(answering({"result": "inside"})) as endpoint:
        before = await make_world(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{endpoint.port}")
        await before.register(runtime={"kind": "http", "endpoint": endpoint.url})
        world = await make_world()
        task = await world.ended(await world.submit())
        assert (task["status"], task["error"]["code"]) == ("failed", "ENDPOINT_REFUSED")
        assert endpoint.calls == []


@requirement("execution.http-repetition-key")
async def test_a_repetition_has_the_same_key_and_a_retry_another_one(place: Place) -> None:
    worlds: list[World] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        worlds[0].runlog.broken = not worlds[0].runlog.broken and len(endpoint.calls) == 1
        return web.json_response({"error": "no result"})

    world, endpoint = await place(answer)
    worlds.append(world)
    task_id = await world.submit()
    await soon(lambda: world.runlog.broken)
    await soon(lambda: not world.kernel.tasks.dispatcher.count_running())
    world.runlog.broken = False
    world.clock.advance(seconds=120)
    await world.kernel.tasks.reconciler.tick(0)
    failed = await world.ended(task_id)
    assert (failed["status"], failed["attempts"]) == ("failed", 2)
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/retry")).status_code == 202
    await world.ended(task_id)
    assert [call["headers"]["Idempotency-Key"] for call in endpoint.calls] == [
        f"{task_id}:1",
        f"{task_id}:1",
        f"{task_id}:3",
    ]


@requirement("sandbox.quarantined-worker")
async def test_the_answer_of_an_agent_that_was_quarantined_meanwhile_is_not_accepted(place: Place) -> None:
    go_on = asyncio.Event()
    world, endpoint = await place(streaming(event("complete", {"result": "too late", "cost": 0.5}), after=go_on))
    task_id = await world.submit()
    await asyncio.wait_for(endpoint.arrived.wait(), 60)
    agent = (await world.task(task_id))["assigned_agent"]
    for _ in range(3):
        call = {"tool": "shell", "operation": "run"}
        await world.admin.post(f"/api/v1/registry/agents/{agent}/authorize", json=call)
    go_on.set()
    task = await world.ended(task_id)
    assert (task["status"], task["result"], task["error"]["code"]) == ("failed", None, "AGENT_QUARANTINED")
    (failed,) = [each for each in await world.events(task_id) if each["event_type"] == "task_failed"]
    assert failed["metadata"]["cost"] == 0.5
