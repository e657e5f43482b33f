"""A kernel that may call this machine, a receiver, and the calls that the tests make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.conftest import MakeWorld, World
from tests.domains.webhooks.receiver import Receiver, receiving

BASE = "/api/v1/webhooks"


@dataclass
class Hooks:
    """Webhooks in a world."""

    world: World
    receiver: Receiver

    async def ask(self, method: str, path: str = "", client: str = "ADMIN", **options: Any) -> httpx.Response:
        return await self.world.clients[client].request(method, f"{BASE}{path}", **options)

    async def do(self, method: str, path: str = "", status: int = 200, **options: Any) -> dict[str, Any]:
        answer = await self.ask(method, path, **options)
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    async def subscribe(self, *events: str, url: str | None = None, **options: Any) -> dict[str, Any]:
        body = {"url": url or self.receiver.url, "events": list(events or ("*",))}
        return await self.do("POST", "", 201, json=body, **options)

    async def deliveries(self, webhook_id: str, **params: Any) -> list[dict[str, Any]]:
        return list((await self.do("GET", f"/{webhook_id}/deliveries", params=params))["deliveries"])

    async def until(self, webhook_id: str, **expected: Any) -> dict[str, Any]:
        """The newest delivery as soon as it has these fields."""
        for _ in range(4000):
            found = await self.deliveries(webhook_id, limit=1)
            if found and all(found[0][name] == value for name, value in expected.items()):
                return found[0]
            await asyncio.sleep(0.005)
        raise AssertionError(f"never {expected}: {found}")

    async def later(self, seconds: float) -> None:
        """Time passes, and the service looks at what came due."""
        self.world.clock.advance(seconds=seconds)
        await self.world.kernel.hooks.deliverer.look()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


@pytest.fixture
async def hooks(make_world: MakeWorld, receiver: Receiver) -> Hooks:
    return Hooks(await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1"), receiver)
