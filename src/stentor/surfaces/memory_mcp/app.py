"""The Streamable HTTP transport at /mcp: bearer tokens, RFC 9728 metadata, allowed hosts and origins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from mcp.server.auth.routes import build_resource_metadata_url, cors_middleware
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from stentor import __version__
from stentor.domains.memory.governed.authorization import CAPABILITIES
from stentor.surfaces.memory_mcp.access import Verifier, of_request
from stentor.surfaces.memory_mcp.calls import Calls
from stentor.surfaces.memory_mcp.presented import Presented
from stentor.surfaces.memory_mcp.server import build

PATH = "/mcp"
WELL_KNOWN = "/.well-known/oauth-protected-resource"
SIGN_IN = ("/register", "/authorize", "/token")
"""Where clients of earlier revisions look for an authorization server when no metadata names one."""
NO_SIGN_IN = {
    "error": "invalid_request",
    "error_description": "Nobody signs in here: give the client a key of the service, or a receipt, to send as the "
    "header 'Authorization: Bearer <token>'.",
}


@dataclass(frozen=True)
class Exposure:
    """Under which address clients know the server, and which others may name it.

    `address` is the origin, such as `https://memory.example.com`. Hosts are `host` or `host:port`, origins whole.
    """

    address: str
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    @property
    def security(self) -> TransportSecuritySettings:
        """The address itself, this machine's names with its port, and what the operator added."""
        parts = urlsplit(self.address)
        port = "" if parts.port is None else f":{parts.port}"
        own = {parts.netloc, *(f"{name}{port}" for name in ("127.0.0.1", "localhost", "[::1]"))}
        return TransportSecuritySettings(
            allowed_hosts=sorted({*own, *self.hosts}),
            allowed_origins=sorted({*(f"{parts.scheme}://{name}" for name in own), *self.origins}),
        )


class MemoryServer:
    """`app` answers while `run` runs."""

    def __init__(self, calls: Calls, verifier: Verifier, exposure: Exposure, max_body: int) -> None:
        self._server: Server[object] = build(calls, of_request)
        resource = AnyHttpUrl(exposure.address + PATH)
        # The audience of a receipt is checked by the verifier; a key of the service is for the service alone.
        auth = AuthSettings(
            issuer_url=AnyHttpUrl(exposure.address), resource_server_url=resource, validate_token_resource=False
        )
        transport = self._server.streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            stateless_http=True,
            max_request_body_size=max_body,
            transport_security=exposure.security,
            auth=auth,
            token_verifier=verifier,
            custom_starlette_routes=[Route("/health", _health), *_sign_in()],
        )
        transport.router.routes[:0] = _metadata(exposure)  # before the SDK's own, which says less
        self.app: ASGIApp = Presented(transport, max_body)

    async def run(self, begun: Callable[[], None]) -> None:
        """Until it is cancelled; `begun` is called when it answers."""
        async with self._server.session_manager.run():
            begun()
            await asyncio.Event().wait()


def _metadata(exposure: Exposure) -> list[Route]:
    """RFC 9728 where the 401 points to, and the same without a path behind it, for clients that ask there.

    It names no authorization server, because there is none: tokens are keys of the service and receipts.
    """
    document = {
        "resource": exposure.address + PATH,
        "scopes_supported": list(CAPABILITIES),
        "bearer_methods_supported": ["header"],
        "resource_name": "Stentor memory",
    }

    async def answer(request: Request) -> JSONResponse:
        return JSONResponse(document, headers={"Cache-Control": "public, max-age=3600"})

    pointed_to = build_resource_metadata_url(AnyHttpUrl(exposure.address + PATH)).path or WELL_KNOWN
    methods = ["GET", "OPTIONS"]
    return [Route(path, cors_middleware(answer, methods), methods=methods) for path in (WELL_KNOWN, pointed_to)]


def _sign_in() -> list[Route]:
    async def answer(request: Request) -> JSONResponse:
        return JSONResponse(NO_SIGN_IN, 404)

    return [Route(path, answer, methods=["GET", "POST"]) for path in SIGN_IN]


async def _health(request: Request) -> JSONResponse:
    return JSONResponse({"status": "ok", "service": "stentor-memory", "version": __version__})
