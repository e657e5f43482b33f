"""The transport on standard input and output: one client, whose authority the launch configuration names."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from stentor.auth.authority.context import AuthorityContext
from stentor.surfaces.memory_mcp.calls import Calls
from stentor.surfaces.memory_mcp.server import build


async def serve(calls: Calls, who: AuthorityContext | None) -> None:
    """Until the client closes its end."""
    server = build(calls, lambda _: who)
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())
