"""Messages through NATS, without its persistence: what is missed is found in the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import nats
from nats.aio.client import Client


class NatsTransport:
    limit = 200_000
    """NATS takes a megabyte."""

    def __init__(self, url: str, subject: str) -> None:
        self._url = url
        self._subject = subject
        self._client: Client | None = None

    async def listen(self, receive: Callable[[bytes | str], None], ready: Callable[[], None]) -> None:
        lost = asyncio.Event()

        async def given(message: Any) -> None:
            receive(message.data)

        async def gone() -> None:
            lost.set()

        async def silent(_error: Exception) -> None:
            """What fails is raised where it is asked for."""

        client = self._client = await nats.connect(
            self._url,
            name="stentor",
            allow_reconnect=False,
            max_reconnect_attempts=0,
            connect_timeout=5,
            disconnected_cb=gone,
            closed_cb=gone,
            error_cb=silent,
        )
        try:
            await client.subscribe(self._subject, cb=given)
            await client.flush()
            ready()
            await lost.wait()
            raise ConnectionError("the connection ended")
        except Exception:
            await client.close()
            raise

    async def publish(self, payloads: list[bytes]) -> None:
        if self._client is None or not self._client.is_connected:
            raise ConnectionError("not connected")
        for payload in payloads:
            await self._client.publish(self._subject, payload)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.flush()
            await self._client.close()
