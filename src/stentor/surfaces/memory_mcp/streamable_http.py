"""The Streamable HTTP transport at /mcp: bearer tokens, RFC 9728 metadata, allowed hosts and origins.

`call_remote_tool` is the client side, for calls that another memory server executes.
"""

from __future__ import annotations

import asyncio
import ssl
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
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor import __version__
from stentor.domains.memory.governed.authorization import CAPABILITIES
from stentor.surfaces.memory_mcp.access import BearerTokenVerifier, ProofRequestMiddleware, get_request_authority
from stentor.surfaces.memory_mcp.server import create_server
from stentor.surfaces.memory_mcp.tools import ToolCaller
from stentor.web.errors import render_stentor_error, wrong_port_error

MCP_PATH = "/mcp"
METADATA_PATH = "/.well-known/oauth-protected-resource"
OAUTH_PATHS = ("/register", "/authorize", "/token")
"""Where clients of earlier protocol revisions look for an authorization server."""
CALL_TIMEOUT_SECONDS = 60.0
OAUTH_REFUSAL = {
    "error": "invalid_request",
    "error_description": "OAuth is not supported: configure the client with a key of the service, or a receipt, to "
    "send as the header 'Authorization: Bearer <token>'.",
}


@dataclass(frozen=True)
class PublicEndpoint:
    """The public address of the server, and further Host and Origin values that it accepts.

    `origin` is such as `https://memory.example.com`. Hosts are `host` or `host:port`, origins are complete.
    """

    origin: str
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()

    @property
    def transport_security(self) -> TransportSecuritySettings:
        """Allow the origin itself, this machine's names with its port, and what the operator added."""
        parts = urlsplit(self.origin)
        port = "" if parts.port is None else f":{parts.port}"
        names = {parts.netloc, *(f"{host}{port}" for host in ("127.0.0.1", "localhost", "[::1]"))}
        return TransportSecuritySettings(
            allowed_hosts=sorted({*names, *self.allowed_hosts}),
            allowed_origins=sorted({*(f"{parts.scheme}://{name}" for name in names), *self.allowed_origins}),
        )


class MemoryServer:
    """The HTTP server of the memory; `app` serves while `run` runs."""

    def __init__(
        self, calls: ToolCaller, verifier: BearerTokenVerifier, exposure: PublicEndpoint, max_body: int
    ) -> None:
        self._server: Server[object] = create_server(calls, get_request_authority)
        resource = AnyHttpUrl(exposure.origin + MCP_PATH)
        # Not checked by the SDK: the verifier checks the audience of receipts, and API keys have none.
        auth = AuthSettings(
            issuer_url=AnyHttpUrl(exposure.origin), resource_server_url=resource, validate_token_resource=False
        )
        transport = self._server.streamable_http_app(
            streamable_http_path=MCP_PATH,
            json_response=True,
            # No sessions: each request brings its token, and any process of an installation can answer it.
            stateless_http=True,
            max_request_body_size=max_body,
            transport_security=exposure.transport_security,
            auth=auth,
            token_verifier=verifier,
            custom_starlette_routes=[Route("/health", _health), *_oauth_routes()],
        )
        # Before the SDK's own routes: its metadata has less information, and it opens a stream that stays empty.
        transport.router.routes[:0] = [Route(MCP_PATH, _refuse_stream, methods=["GET"]), *_metadata_routes(exposure)]
        transport.add_exception_handler(404, _refuse_path)
        self.app: ASGIApp = ProofRequestMiddleware(transport, max_body)

    async def run(self, on_started: Callable[[], None]) -> None:
        """Serve until cancelled; `on_started` is called when requests are accepted."""
        async with self._server.session_manager.run():
            on_started()
            await asyncio.Event().wait()


async def _refuse_path(request: Request, error: Exception) -> Response:
    what = f"the memory's MCP server, at {MCP_PATH}"
    return render_stentor_error(request.scope, wrong_port_error(request.url.path, what))


def _metadata_routes(exposure: PublicEndpoint) -> list[Route]:
    """Return the RFC 9728 metadata routes: the path that the 401 names, and the one without a suffix.

    The document names no authorization server, because there is none: tokens are API keys and receipts.
    """
    document = {
        "resource": exposure.origin + MCP_PATH,
        "scopes_supported": list(CAPABILITIES),
        "bearer_methods_supported": ["header"],
        "resource_name": "Stentor memory",
    }

    async def metadata(request: Request) -> JSONResponse:
        return JSONResponse(document, headers={"Cache-Control": "public, max-age=3600"})

    resource_path = build_resource_metadata_url(AnyHttpUrl(exposure.origin + MCP_PATH)).path or METADATA_PATH
    methods = ["GET", "OPTIONS"]
    return [Route(path, cors_middleware(metadata, methods), methods=methods) for path in (METADATA_PATH, resource_path)]


def _oauth_routes() -> list[Route]:
    async def refuse(request: Request) -> JSONResponse:
        return JSONResponse(OAUTH_REFUSAL, 404)

    return [Route(path, refuse, methods=["GET", "POST"]) for path in OAUTH_PATHS]


async def _refuse_stream(request: Request) -> JSONResponse:
    """As the protocol has it for a server that sends nothing on its own."""
    error = {"code": mcp.INVALID_REQUEST, "message": "The server sends no events on its own: send messages with POST."}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 405, {"Allow": "POST"})


async def _health(request: Request) -> JSONResponse:
    return JSONResponse({"status": "ok", "service": "stentor-memory", "version": __version__})


TokenSource = Callable[[], str]


class ServerUnreachable(Exception):
    """The memory server is unreachable, or rejected the call."""


class _BearerAuth(httpx2.Auth):
    def __init__(self, token: TokenSource) -> None:
        self._token = token

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._token()}"
        yield request


async def call_remote_tool(
    address: str, token: TokenSource, name: str, arguments: Mapping[str, Any], trust: ssl.SSLContext
) -> mcp.CallToolResult:
    """Call a tool of the memory server at `address`; `token` is called for each request. Raises ServerUnreachable.

    `trust` verifies its certificate.
    """
    # trust_env: a proxy from the environment must not be used for calls to this installation.
    async with httpx2.AsyncClient(
        auth=_BearerAuth(token), timeout=CALL_TIMEOUT_SECONDS, verify=trust, trust_env=False
    ) as http:
        try:
            transport = streamable_http_client(address + MCP_PATH, http_client=http)
            # Both ends are this version, so nothing needs to be negotiated.
            async with Client(transport, mode=LATEST_PROTOCOL_VERSION) as client:
                return await client.call_tool(name, dict(arguments))
        except* (httpx2.HTTPError, MCPError, OSError) as group:
            raise ServerUnreachable(f"The memory server {address} is unreachable or rejected the call.") from group
