"""Calls that another server of this kind carries out, each with a token of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import httpx2
import mcp_types as mcp
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types.version import LATEST_PROTOCOL_VERSION

from stentor.surfaces.memory_mcp.app import PATH

SECONDS = 60.0
Token = Callable[[], str]


class Unreachable(Exception):
    """Nothing answers there, or it does not take the call."""


class _Bearer(httpx2.Auth):
    def __init__(self, token: Token) -> None:
        self._token = token

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._token()}"
        yield request


async def call(address: str, token: Token, name: str, arguments: Mapping[str, Any]) -> mcp.CallToolResult:
    """`token` is asked once for each request. Raises Unreachable."""
    # A proxy of the environment stands between us and others, never between us and ourselves.
    async with httpx2.AsyncClient(auth=_Bearer(token), timeout=SECONDS, trust_env=False) as http:
        try:
            transport = streamable_http_client(address + PATH, http_client=http)
            async with Client(transport, mode=LATEST_PROTOCOL_VERSION) as client:
                return await client.call_tool(name, dict(arguments))
        except* (httpx2.HTTPError, MCPError, OSError) as group:
            raise Unreachable(f"{address} does not carry out the call.") from group
