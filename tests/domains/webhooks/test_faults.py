"""Misbehaving receivers do not stop the service, delay other receivers, or reach private addresses."""

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
from stentor.domains.webhooks.model import Delivery
from tests.conftest import MakeWorld
from tests.domains.webhooks.conftest import Hooks
from tests.domains.webhooks.receiver import Receiver
from tests.patience import soon
from tests.requirements import requirement

DISABLED_EVENTS = Sql("select event_type, metadata from events where event_type = 'webhook_disabled'")


async def disabled_events(hooks: Hooks) -> list[Any]:
    return await hooks.world.kernel.infra.db.read(lambda tx: tx.rows(DISABLED_EVENTS))


@requirement("webhooks.target-guarded")
@pytest.mark.parametrize(
    "host", ["127.0.0.2", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "224.0.0.1"]
)
async def test_private_address_is_rejected_on_create_and_update(hooks: Hooks, host: str) -> None:
    url = f"http://{host}:{hooks.receiver.port}/"
    response = await hooks.request("POST", json={"url": url, "events": ["*"]})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    webhook = await hooks.subscribe("*")
    assert (await hooks.request("PATCH", f"/{webhook['id']}", json={"url": url})).status_code == 400


@requirement("webhooks.target-guarded")
async def test_hostname_that_resolves_to_a_private_address_is_not_called(
    make_world: MakeWorld, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = Hooks(await make_world(), receiver)
    original = socket.getaddrinfo

    def resolve_to_loopback(host: Any, *args: Any, **options: Any) -> Any:
        return original("127.0.0.1" if host == "hooks.example.com" else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_to_loopback)
    assert (await hooks.request("POST", json={"url": "http://localhost/", "events": ["*"]})).status_code == 400
    webhook = await hooks.subscribe("*", url=f"http://hooks.example.com:{receiver.port}/")
    delivery = await hooks.request_json("POST", f"/{webhook['id']}/test")
    assert (delivery["status"], delivery["error"]) == ("failed", "The receiver's address is not public.")
    assert receiver.calls == []


@requirement("webhooks.success-is-2xx", "webhooks.target-guarded")
async def test_redirect_fails_the_delivery_and_is_not_followed(hooks: Hooks) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"http://127.0.0.1:{hooks.receiver.port}/inside"})

    hooks.receiver.behavior = redirect
    webhook = await hooks.subscribe("*")
    delivery = await hooks.request_json("POST", f"/{webhook['id']}/test")
    assert (delivery["status"], delivery["status_code"]) == ("failed", 307)
    assert [call.path for call in hooks.receiver.calls] == ["/hook"]


async def endless_body(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": str(10**9)})
    await response.prepare(request)
    with suppress(ConnectionError):
        for _ in range(16_000):
            await response.write(b"x" * 65_536)
    return response


async def close_connection(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def truncated_body(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"half")
    assert request.transport is not None
    request.transport.close()
    return response


async def html_page(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b"<html>\0\xff</html>", content_type="text/html")


async def gzip_bomb(request: web.Request) -> web.StreamResponse:
    return web.Response(body=gzip.compress(b"\0" * 50_000_000), headers={"Content-Encoding": "gzip"})


async def invalid_http(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"\0\1\2 not http at all\r\n\r\n")
    request.transport.close()
    return web.Response()


@requirement("webhooks.receivers-misbehave")
@pytest.mark.parametrize(
    ("behavior", "status"),
    [
        (endless_body, 200),
        (html_page, 200),
        (truncated_body, 200),
        (gzip_bomb, 200),
        (close_connection, None),
        (invalid_http, None),
    ],
    ids=["endless body", "html page", "truncated body", "gzip bomb", "no response", "not http"],
)
async def test_status_decides_and_the_response_body_is_capped(
    hooks: Hooks, behavior: Callable[[web.Request], Awaitable[web.StreamResponse]], status: int | None
) -> None:
    hooks.receiver.behavior = behavior
    webhook = await hooks.subscribe("*")
    delivery = await hooks.request_json("POST", f"/{webhook['id']}/test")
    assert delivery["status_code"] == status
    assert delivery["status"] == ("delivered" if status else "failed")
    assert len(delivery["log"][0]["response"] or "") <= 1000


@requirement("webhooks.success-is-2xx")
async def test_silent_receiver_fails_after_the_timeout(make_world: MakeWorld, receiver: Receiver) -> None:
    settings = {"SERVICE_OUTBOUND_ALLOW": "127.0.0.1", "SERVICE_WEBHOOK_TIMEOUT_SECONDS": "0.2"}
    hooks = Hooks(await make_world(**settings), receiver)
    release = asyncio.Event()

    async def wait_for_release(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    receiver.behavior = wait_for_release
    webhook = await hooks.subscribe("*")
    delivery = await hooks.request_json("POST", f"/{webhook['id']}/test")
    release.set()
    assert (delivery["status"], delivery["status_code"]) == ("failed", None)
    assert delivery["error"] == "The receiver did not respond within 0.2 s."


@requirement("webhooks.success-is-2xx", "webhooks.retries")
async def test_410_disables_the_webhook_and_records_the_reason(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    hooks.receiver.statuses = [410]
    await hooks.world.register()
    delivery = await hooks.wait_for_delivery(webhook["id"], status="failed")
    assert delivery["attempts"] == 1
    disabled = await hooks.request_json("GET", f"/{webhook['id']}")
    assert (disabled["enabled"], disabled["disabled_reason"]) == (False, "The receiver responded with 410 Gone.")
    ((_, metadata),) = await disabled_events(hooks)
    assert webhook["id"] in metadata
    await hooks.world.register("two")
    assert len(await hooks.deliveries(webhook["id"])) == 1


@requirement("webhooks.retries")
async def test_webhook_is_disabled_after_nine_failed_retries(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    hooks.receiver.statuses = [503] * 20
    await hooks.world.register()
    for n, delay in enumerate((5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400), 1):
        delivery = await hooks.wait_for_delivery(webhook["id"], attempts=n)
        assert delivery["status"] == "waiting"
        await hooks.advance_clock(delay * 1.101)
    last = await hooks.wait_for_delivery(webhook["id"], attempts=10)
    assert last["status"] == "failed"
    disabled = await hooks.request_json("GET", f"/{webhook['id']}")
    assert (disabled["enabled"], disabled["disabled_reason"]) == (False, "A delivery failed 10 times.")
    assert len(await disabled_events(hooks)) == 1


@requirement("webhooks.retries")
async def test_retry_after_delays_all_deliveries_to_the_endpoint(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")

    async def too_many_requests(request: web.Request) -> web.StreamResponse:
        return web.Response(status=429, headers={"Retry-After": "120"})

    hooks.receiver.behavior = too_many_requests
    await hooks.world.register()
    await hooks.wait_for_delivery(webhook["id"], attempts=1, status="waiting")
    hooks.receiver.behavior = None
    await hooks.world.register("two")
    await hooks.advance_clock(100)
    await asyncio.sleep(0.05)
    assert len(hooks.receiver.calls) == 1
    await hooks.advance_clock(30)
    await hooks.receiver.wait_for_calls(3)


@requirement("webhooks.retries")
@pytest.mark.parametrize(
    "retry_after",
    ["1 Jan 99999999999999999999 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 -1400", "soon", "-5"],
)
async def test_invalid_retry_after_is_ignored_and_the_attempt_counts(hooks: Hooks, retry_after: str) -> None:
    webhook = await hooks.subscribe("agent.registered")

    async def unavailable(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503, headers={"Retry-After": retry_after})

    hooks.receiver.behavior = unavailable
    await hooks.world.register()
    await hooks.wait_for_delivery(webhook["id"], attempts=1, status="waiting")


@requirement("webhooks.slow-delays-nobody")
async def test_slow_and_dead_receivers_do_not_delay_others(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    # After a timeout another delivery would begin, one more than the limit that is counted here.
    monkeypatch.setattr(hooks.world.kernel.webhooks.dispatcher._sender, "_timeout", 600)
    release = asyncio.Event()

    async def slow_path_waits(request: web.Request) -> web.StreamResponse:
        if "slow" in request.path:
            await release.wait()
        return web.Response()

    hooks.receiver.behavior = slow_path_waits
    for n in range(8):
        await hooks.subscribe("agent.registered", url=f"{hooks.receiver.url}/slow/{n}")
        await hooks.subscribe("agent.registered", url=f"http://127.0.0.1:9/dead/{n}")
    good = await hooks.subscribe("agent.registered", url=f"{hooks.receiver.url}/good")
    for n in range(60):
        await hooks.world.register(f"agent-{n}")
    await soon(lambda: sum(call.path.endswith("good") for call in hooks.receiver.calls) == 60)
    limit = 8 * endpoint_worker.MAX_CONCURRENT_DELIVERIES
    await soon(lambda: sum("slow" in call.path for call in hooks.receiver.calls) >= limit)
    slow = [call for call in hooks.receiver.calls if "slow" in call.path]
    assert len(slow) == limit, "concurrent deliveries per endpoint are limited"
    release.set()
    await hooks.wait_for_delivery(good["id"], status="delivered")


@requirement("webhooks.at-least-once")
async def test_unfinished_delivery_is_requeued_at_shutdown(
    make_world: MakeWorld, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "SHUTDOWN_SECONDS", 0.05)
    hooks = Hooks(await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1"), receiver)
    # A timeout before the shutdown would be an attempt.
    monkeypatch.setattr(hooks.world.kernel.webhooks.dispatcher._sender, "_timeout", 600)
    release = asyncio.Event()

    async def wait_for_release(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    receiver.behavior = wait_for_release
    webhook = await hooks.subscribe("agent.registered")
    await hooks.world.register()
    await receiver.wait_for_calls(1)
    await hooks.world.kernel.webhooks.dispatcher.stop()
    (delivery,) = await hooks.deliveries(webhook["id"])
    assert (delivery["status"], delivery["attempts"]) == ("waiting", 0)
    release.set()


@requirement("webhooks.at-least-once")
async def test_a_delivery_that_begins_during_a_poll_is_requeued_at_shutdown_too(
    make_world: MakeWorld, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll began before there was the webhook, and ends while its first delivery is claimed."""
    monkeypatch.setattr(dispatcher, "SHUTDOWN_SECONDS", 0.05)
    hooks = Hooks(await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1"), receiver)
    webhooks = hooks.world.kernel.webhooks.dispatcher
    monkeypatch.setattr(webhooks._sender, "_timeout", 600)
    has_polled, poll_ends, is_claimed, claim_ends, release = (asyncio.Event() for _ in range(5))
    poll, read_bodies = webhooks._db.poll, webhooks.read_bodies

    async def poll_slowly(read: Any) -> Any:
        found = await poll(read)
        has_polled.set()
        await poll_ends.wait()
        return found

    async def read_bodies_slowly(deliveries: list[Delivery]) -> list[bytes | None]:
        is_claimed.set()
        await claim_ends.wait()
        return await read_bodies(deliveries)

    async def wait_for_release(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.Response()

    receiver.behavior = wait_for_release
    monkeypatch.setattr(webhooks._db, "poll", poll_slowly)
    monkeypatch.setattr(webhooks, "read_bodies", read_bodies_slowly)
    polling = asyncio.create_task(webhooks.poll())
    await has_polled.wait()
    webhook = await hooks.subscribe("agent.registered")
    await hooks.world.register()
    await is_claimed.wait()
    poll_ends.set()
    await polling
    claim_ends.set()
    await receiver.wait_for_calls(1)
    await webhooks.stop()
    (delivery,) = await hooks.deliveries(webhook["id"])
    assert (delivery["status"], delivery["attempts"]) == ("waiting", 0)
    release.set()
