"""The fan-out transport over NATS, without its persistence: a missed message is found by polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import nats
from nats.aio.client import Client

from stentor.core.fanout.fanout import Address


class NatsTransport:
    """A `FanoutTransport`; all processes subscribe to one subject, and each to one of its own below it."""

    limit = 200_000
    """NATS accepts a megabyte by default."""

    def __init__(self, url: str, subject: str) -> None:
        self._url = url
        self._subject = subject
        self._client: Client | None = None

    async def listen(self, own_id: str, receive: Callable[[bytes | str], None], ready: Callable[[], None]) -> None:
        lost = asyncio.Event()

        async def on_message(message: Any) -> None:
            receive(message.data)

        async def on_disconnect() -> None:
            lost.set()

        async def on_error(_error: Exception) -> None:
            """Suppress the client's own log lines; calls raise the errors that matter."""

        client = self._client = await nats.connect(
            self._url,
            name="stentor",
            # `Fanout` reconnects, because only it can report that messages were missed.
            allow_reconnect=False,
            max_reconnect_attempts=0,
            connect_timeout=5,
            disconnected_cb=on_disconnect,
            closed_cb=on_disconnect,
            error_cb=on_error,
        )
        try:
            for to in (None, own_id):
                await client.subscribe(self._subject_of(to), cb=on_message)
            # A round trip: after it the server has the subscriptions and nothing is missed. Two, because nats-py writes
            # the first one's PING ahead of the subscription, which waits in a buffer; it has left before the second's.
            await client.flush()
            await client.flush()
            ready()
            await lost.wait()
            raise ConnectionError("connection lost")
        except Exception:
            await client.close()
            raise

    async def publish(self, payloads: list[tuple[Address, bytes]]) -> None:
        if self._client is None or not self._client.is_connected:
            raise ConnectionError("not connected")
        for to, payload in payloads:
            await self._client.publish(self._subject_of(to), payload)

    def _subject_of(self, to: Address) -> str:
        return self._subject if to is None else f"{self._subject}.{to}"

    async def close(self) -> None:
        if self._client is not None:
            await self._client.flush()
            await self._client.close()
