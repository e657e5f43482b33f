"""Start a real `stentor serve` with governed memory, and connect the official client in both protocol revisions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.conftest import Service
from tests.databases import rows

MODES = ("2026-07-28", "legacy")


@pytest.fixture(scope="module")
def service(serve_module: Callable[..., Service]) -> Service:
    return serve_module(SERVICE_EMBEDDING_MODEL="none", SERVICE_API_KEY_BLANK="blank-key-7c1e:agent:delete")


class TokenAuth(httpx2.Auth):
    """Call `token` for each request, so that a test can send a new receipt each time."""

    def __init__(self, token: Callable[[], str]) -> None:
        self.token = token

    def auth_flow(self, request: httpx2.Request) -> Iterator[httpx2.Request]:  # pyrefly: ignore[bad-override] - an iterator is enough for httpx
        request.headers["Authorization"] = f"Bearer {self.token()}"
        yield request


@asynccontextmanager
async def connect_client(
    service: Service, token: str | Callable[[], str] = "admin-key-7c1e", mode: str = MODES[0], auth: Any = None
) -> AsyncIterator[Client]:
    auth = auth or TokenAuth(token if callable(token) else lambda: token)
    async with httpx2.AsyncClient(auth=auth, trust_env=False, timeout=200) as http:
        transport = streamable_http_client(service.ready["mcp"] + "/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """Return the structured result of a tool call, or its error code."""
    result = await client.call_tool(tool, arguments)
    return result.structured_content["error"]["code"] if result.is_error else result.structured_content


def denials(database: Path | str) -> list[str]:
    """Return the metadata of each denial in the run log, oldest first."""
    metadata_rows = rows(database, "select metadata from events where event_type = 'tool_denied' order by event_id")
    return [str(metadata) for (metadata,) in metadata_rows]
