"""Bodies of responses of aiohttp, whose `read` and `json` have no limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes | None:
    """Return the body, or None as soon as it is longer than `max_bytes`, decompressed. Raises like aiohttp."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > max_bytes:
            return None
    return bytes(body)
