"""Receivers that misbehave in every way we know: none takes the service down, delays others, or reaches inside."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import web

from stentor.core.db import Sql
from stentor.domains.webhooks import dispatcher, endpoint_worker
from tests.conftest import MakeWorld
from tests.domains.webhooks.conftest import Hooks
from tests.domains.webhooks.receiver import Receiver
from tests.patience import soon
from tests.requirements import requirement

EVENTS = Sql("select event_type, metadata from events where event_type = 'webhook_disabled'")


async def events(hooks: Hooks) -> list[Any]:
    return await hooks.world.kernel.infra.db.read(lambda tx: tx.rows(EVENTS))


@requirement("webhooks.target-guarded")
@pytest.mark.parametrize(
    "host", ["127.0.0.2", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "224.0.0.1"]
)
async def test_an_address_inside_is_refused_when_subscribing_and_when_changing(hooks: Hooks, host: str) -> None:
    url = f"http://{host}:{hooks.receiver.port}/"
    answer = await hooks.ask("POST", json={"url": url, "events": ["*"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    made = await hooks.subscribe("*")
    assert (await hooks.ask("PATCH", f"/{made['id']}", json={"url": url})).status_code == 400


@requirement("webhooks.target-guarded")
async def test_a_name_that_leads_inside_is_refused_when_delivering(
    make_world: MakeWorld, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = Hooks(await make_world(), receiver)
    system = socket.getaddrinfo

    def rebound(host: Any, *args: Any, **options: Any) -> Any:
        return system("127.0.0.1" if host == "hooks.example.com" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    assert (await hooks.ask("POST", json={"url": "http://localhost/", "events": ["*"]})).status_code == 400
    made = await hooks.subscribe("*", url=f"http://hooks.example.com:{receiver.port}/")
    told = await hooks.do("POST", f"/{made['id']}/test")
    assert (told["status"], told["error"]) == ("failed", "The receiver's address is not public.")
    assert receiver.calls == []


@requirement("webhooks.success-is-2xx", "webhooks.target-guarded")
async def test_a_redirect_is_a_failure_and_is_not_followed(hooks: Hooks) -> None:
    async def elsewhere(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"http://127.0.0.1:{hooks.receiver.port}/inside"})

    hooks.receiver.mood = elsewhere
    made = await hooks.subscribe("*")
    told = await hooks.do("POST", f"/{made['id']}/test")
    assert (told["status"], told["status_code"]) == ("failed", 307)
    assert [call.path for call in hooks.receiver.calls] == ["/hook"]


async def endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": str(10**9)})
    await answer.prepare(request)
    with suppress(ConnectionError):
        for _ in range(16_000):
            await answer.write(b"x" * 65_536)
    return answer


async def broken(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def half(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Length": "100"})
    await answer.prepare(request)
    await answer.write(b"half")
    assert request.transport is not None
    request.transport.close()
    return answer


async def page(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"<html>\0\xff</html>", content_type="text/html")


async def bomb(request: web.Request) -> web.StreamResponse:
    return web.Response(body=gzip.compress(b"\0" * 50_000_000), headers={"Content-Encoding": "gzip"})


async def noise(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"\0\1\2 not http at all\r\n\r\n")
    request.transport.close()
    return web.Response()


@requirement("webhooks.receivers-misbehave")
@pytest.mark.parametrize(
    ("mood", "status"),
    [(endless, 200), (page, 200), (half, 200), (bomb, 200), (broken, None), (noise, None)],
    ids=["a gigabyte", "a page", "half an answer", "a bomb", "nothing", "noise"],
)
async def test_the_status_counts_and_no_more_than_a_few_kilobytes_are_read(
    hooks: Hooks, mood: Callable[[web.Request], Awaitable[web.StreamResponse]], status: int | None
) -> None:
    hooks.receiver.mood = mood
    made = await hooks.subscribe("*")
    told = await hooks.do("POST", f"/{made['id']}/test")
    assert told["status_code"] == status
    assert told["status"] == ("delivered" if status else "failed")
    assert len(told["log"][0]["response"] or "") <= 1000


@requirement("webhooks.success-is-2xx")
async def test_a_receiver_that_never_answers_fails_after_the_timeout(make_world: MakeWorld, receiver: Receiver) -> None:
    allowed = {"SERVICE_OUTBOUND_ALLOW": "127.0.0.1", "SERVICE_WEBHOOK_TIMEOUT_SECONDS": "0.2"}
    hooks = Hooks(await make_world(**allowed), receiver)
    gone = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        await gone.wait()
        return web.Response()

    receiver.mood = silent
    made = await hooks.subscribe("*")
    told = await hooks.do("POST", f"/{made['id']}/test")
    gone.set()
    assert (told["status"], told["status_code"]) == ("failed", None)
    assert told["error"] == "The receiver did not respond within 0.2 s."


@requirement("webhooks.success-is-2xx", "webhooks.retries")
async def test_a_410_disables_the_webhook_and_says_so(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.registered")
    hooks.receiver.statuses = [410]
    await hooks.world.register()
    failed = await hooks.until(made["id"], status="failed")
    assert failed["attempts"] == 1
    shown = await hooks.do("GET", f"/{made['id']}")
    assert (shown["enabled"], shown["disabled_reason"]) == (False, "The receiver responded with 410 Gone.")
    ((_, metadata),) = await events(hooks)
    assert made["id"] in metadata
    await hooks.world.register("two")
    assert len(await hooks.deliveries(made["id"])) == 1


@requirement("webhooks.retries")
async def test_after_nine_retries_the_webhook_is_disabled_and_reported(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.registered")
    hooks.receiver.statuses = [503] * 20
    await hooks.world.register()
    for n, wait in enumerate((5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400), 1):
        found = await hooks.until(made["id"], attempts=n)
        assert found["status"] == "waiting"
        await hooks.later(wait * 1.101)
    failed = await hooks.until(made["id"], attempts=10)
    assert failed["status"] == "failed"
    shown = await hooks.do("GET", f"/{made['id']}")
    assert (shown["enabled"], shown["disabled_reason"]) == (False, "A delivery failed 10 times.")
    assert len(await events(hooks)) == 1


@requirement("webhooks.retries")
async def test_retry_after_holds_the_whole_endpoint(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.registered")

    async def busy(request: web.Request) -> web.StreamResponse:
        return web.Response(status=429, headers={"Retry-After": "120"})

    hooks.receiver.mood = busy
    await hooks.world.register()
    await hooks.until(made["id"], attempts=1, status="waiting")
    hooks.receiver.mood = None
    await hooks.world.register("two")
    await hooks.later(100)
    await asyncio.sleep(0.05)
    assert len(hooks.receiver.calls) == 1
    await hooks.later(30)
    await hooks.receiver.got(3)


@requirement("webhooks.retries")
@pytest.mark.parametrize("told", ["1 Jan 99999999999999999999 00:00:00 GMT", "soon", "-5"])
async def test_a_retry_after_that_says_nothing_is_passed_over_and_the_attempt_counts(hooks: Hooks, told: str) -> None:
    made = await hooks.subscribe("agent.registered")

    async def broken(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, headers={"Retry-After": told})

    hooks.receiver.mood = broken
    await hooks.world.register()
    await hooks.until(made["id"], attempts=1, status="waiting")


@requirement("webhooks.slow-delays-nobody")
async def test_slow_and_dead_receivers_delay_nobody_else(hooks: Hooks) -> None:
    gate = asyncio.Event()

    async def mood(request: web.Request) -> web.StreamResponse:
        if "slow" in request.path:
            await gate.wait()
        return web.Response()

    hooks.receiver.mood = mood
    for n in range(8):
        await hooks.subscribe("agent.registered", url=f"{hooks.receiver.url}/slow/{n}")
        await hooks.subscribe("agent.registered", url=f"http://127.0.0.1:9/dead/{n}")
    good = await hooks.subscribe("agent.registered", url=f"{hooks.receiver.url}/good")
    for n in range(60):
        await hooks.world.register(f"agent-{n}")
    await soon(lambda: sum(call.path.endswith("good") for call in hooks.receiver.calls) == 60)
    slow = [call for call in hooks.receiver.calls if "slow" in call.path]
    assert len(slow) == 8 * endpoint_worker.MAX_CONCURRENT_DELIVERIES, "only so many are on their way to one endpoint"
    gate.set()
    await hooks.until(good["id"], status="delivered")


@requirement("webhooks.at-least-once")
async def test_what_is_under_way_when_the_service_leaves_is_given_back(
    make_world: MakeWorld, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "SHUTDOWN_SECONDS", 0.05)
    hooks = Hooks(await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1"), receiver)
    gate = asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return web.Response()

    receiver.mood = silent
    made = await hooks.subscribe("agent.registered")
    await hooks.world.register()
    await receiver.got(1)
    await hooks.world.kernel.webhooks.dispatcher.stop()
    (left,) = await hooks.deliveries(made["id"])
    assert (left["status"], left["attempts"]) == ("waiting", 0)
    gate.set()
