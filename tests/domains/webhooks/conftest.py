"""A kernel that may call this machine, a receiver, and the calls that the tests make."""

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
        found: list[dict[str, Any]] = []

        async def so() -> bool:
            found[:] = await self.deliveries(webhook_id, limit=1)
            return bool(found) and found[0].items() >= expected.items()

        await soon(so, lambda: f"never {expected}: {found}")
        return found[0]

    async def later(self, seconds: float) -> None:
        """Time passes, and the service looks at what came due."""
        self.world.clock.advance(seconds=seconds)
        await self.world.kernel.webhooks.dispatcher.poll()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


@pytest.fixture
async def hooks(make_world: MakeWorld, receiver: Receiver) -> Hooks:
    return Hooks(await make_world(SERVICE_OUTBOUND_ALLOW="127.0.0.1"), receiver)
