"""Fixtures: a kernel that may deliver to 127.0.0.1, a webhook receiver, and a client for the webhook routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.conftest import MakeWorld, World
from tests.domains.webhooks.receiver import Receiver, receiving
from tests.patience import soon

BASE = "/api/v1/webhooks"


@dataclass
class Hooks:
    """A client for the webhook routes of `world`, whose deliveries go to `receiver`."""

    world: World
    receiver: Receiver

    async def request(self, method: str, path: str = "", client: str = "ADMIN", **options: Any) -> httpx.Response:
        return await self.world.clients[client].request(method, f"{BASE}{path}", **options)

    async def request_json(self, method: str, path: str = "", status: int = 200, **options: Any) -> dict[str, Any]:
        response = await self.request(method, path, **options)
        assert response.status_code == status, response.text
        return dict(response.json())

    async def subscribe(self, *events: str, url: str | None = None, **options: Any) -> dict[str, Any]:
        body = {"url": url or self.receiver.url, "events": list(events or ("*",))}
        return await self.request_json("POST", "", 201, json=body, **options)

    async def deliveries(self, webhook_id: str, **params: Any) -> list[dict[str, Any]]:
        return list((await self.request_json("GET", f"/{webhook_id}/deliveries", params=params))["deliveries"])

    async def wait_for_delivery(self, webhook_id: str, **expected: Any) -> dict[str, Any]:
        """Wait until the newest delivery has these fields; return it."""
        newest: list[dict[str, Any]] = []

        async def matches() -> bool:
            newest[:] = await self.deliveries(webhook_id, limit=1)
            return bool(newest) and newest[0].items() >= expected.items()

        await soon(matches, lambda: f"never {expected}: {newest}")
        return newest[0]

    async def advance_clock(self, seconds: float) -> None:
        """Advance the clock and let the service poll for deliveries that are due."""
        self.world.clock.advance(seconds=seconds)
        await self.world.kernel.webhooks.dispatcher.poll()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as running:
        yield running


@pytest.fixture
async def hooks(make_world: MakeWorld, receiver: Receiver) -> Hooks:
    return Hooks(await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1"), receiver)
