"""The Streamable HTTP transport at /mcp: bearer tokens, RFC 9728 metadata, allowed hosts and origins.

Calls that another server of this kind carries out, each with a token of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
import mcp_types as mcp
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.routes import build_resource_metadata_url, cors_middleware
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.version import LATEST_PROTOCOL_VERSION
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor import __version__
from stentor.domains.memory.governed.authorization import CAPABILITIES
from stentor.surfaces.memory_mcp.access import BearerTokenVerifier, ProofRequestMiddleware, get_request_authority
from stentor.surfaces.memory_mcp.server import create_server
from stentor.surfaces.memory_mcp.tools import ToolCaller

MCP_PATH = "/mcp"
METADATA_PATH = "/.well-known/oauth-protected-resource"
OAUTH_PATHS = ("/register", "/authorize", "/token")
"""Where clients of earlier revisions look for an authorization server when no metadata names one."""
OAUTH_REFUSAL = {
    "error": "invalid_request",
    "error_description": "Nobody signs in here: give the client a key of the service, or a receipt, to send as the "
    "header 'Authorization: Bearer <token>'.",
}


@dataclass(frozen=True)
class PublicEndpoint:
    """Under which address clients know the server, and which others may name it.

    `address` is the origin, such as `https://memory.example.com`. Hosts are `host` or `host:port`, origins whole.
    """

    origin: str
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()

    @property
    def transport_security(self) -> TransportSecuritySettings:
        """The address itself, this machine's names with its port, and what the operator added."""
        parts = urlsplit(self.origin)
        port = "" if parts.port is None else f":{parts.port}"
        own = {parts.netloc, *(f"{name}{port}" for name in ("127.0.0.1", "localhost", "[::1]"))}
        return TransportSecuritySettings(
            allowed_hosts=sorted({*own, *self.allowed_hosts}),
            allowed_origins=sorted({*(f"{parts.scheme}://{name}" for name in own), *self.allowed_origins}),
        )


class MemoryServer:
    """`app` answers while `run` runs."""

    def __init__(
        self, calls: ToolCaller, verifier: BearerTokenVerifier, exposure: PublicEndpoint, max_body: int
    ) -> None:
        self._server: Server[object] = create_server(calls, get_request_authority)
        resource = AnyHttpUrl(exposure.origin + MCP_PATH)
        # The audience of a receipt is checked by the verifier; a key of the service is for the service alone.
        auth = AuthSettings(
            issuer_url=AnyHttpUrl(exposure.origin), resource_server_url=resource, validate_token_resource=False
        )
        transport = self._server.streamable_http_app(
            streamable_http_path=MCP_PATH,
            json_response=True,
            stateless_http=True,
            max_request_body_size=max_body,
            transport_security=exposure.transport_security,
            auth=auth,
            token_verifier=verifier,
            custom_starlette_routes=[Route("/health", _health), *_oauth_routes()],
        )
        transport.router.routes[:0] = _metadata_routes(exposure)  # before the SDK's own, which says less
        self.app: ASGIApp = ProofRequestMiddleware(transport, max_body)

    async def run(self, begun: Callable[[], None]) -> None:
        """Until it is cancelled; `begun` is called when it answers."""
        async with self._server.session_manager.run():
            begun()
            await asyncio.Event().wait()


def _metadata_routes(exposure: PublicEndpoint) -> list[Route]:
    """RFC 9728 where the 401 points to, and the same without a path behind it, for clients that ask there.

    It names no authorization server, because there is none: tokens are keys of the service and receipts.
    """
    document = {
        "resource": exposure.origin + MCP_PATH,
        "scopes_supported": list(CAPABILITIES),
        "bearer_methods_supported": ["header"],
        "resource_name": "Stentor memory",
    }

    async def answer(request: Request) -> JSONResponse:
        return JSONResponse(document, headers={"Cache-Control": "public, max-age=3600"})

    pointed_to = build_resource_metadata_url(AnyHttpUrl(exposure.origin + MCP_PATH)).path or METADATA_PATH
    methods = ["GET", "OPTIONS"]
    return [Route(path, cors_middleware(answer, methods), methods=methods) for path in (METADATA_PATH, pointed_to)]


def _oauth_routes() -> list[Route]:
    async def answer(request: Request) -> JSONResponse:
        return JSONResponse(OAUTH_REFUSAL, 404)

    return [Route(path, answer, methods=["GET", "POST"]) for path in OAUTH_PATHS]


async def _health(request: Request) -> JSONResponse:
    return JSONResponse({"status": "ok", "service": "stentor-memory", "version": __version__})


CALL_TIMEOUT_SECONDS = 60.0
TokenSource = Callable[[], str]


class ServerUnreachable(Exception):
    """Nothing answers there, or it does not take the call."""


class _BearerAuth(httpx2.Auth):
    def __init__(self, token: TokenSource) -> None:
        self._token = token

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._token()}"
        yield request


async def call_remote_tool(
    address: str, token: TokenSource, name: str, arguments: Mapping[str, Any]
) -> mcp.CallToolResult:
    """`token` is asked once for each request. Raises Unreachable."""
    # A proxy of the environment stands between us and others, never between us and ourselves.
    async with httpx2.AsyncClient(auth=_BearerAuth(token), timeout=CALL_TIMEOUT_SECONDS, trust_env=False) as http:
        try:
            transport = streamable_http_client(address + MCP_PATH, http_client=http)
            async with Client(transport, mode=LATEST_PROTOCOL_VERSION) as client:
                return await client.call_tool(name, dict(arguments))
        except* (httpx2.HTTPError, MCPError, OSError) as group:
            raise ServerUnreachable(f"{address} does not carry out the call.") from group
