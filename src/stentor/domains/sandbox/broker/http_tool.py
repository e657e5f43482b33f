"""Requests to the hosts of the agent's network allowlist, through the guard that all outbound requests pass."""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from yarl import URL

from stentor.core.errors import InvalidRequest
from stentor.core.http_client.outbound import OutboundHttp, TargetRefused
from stentor.domains.sandbox.broker.model import SandboxRun, ToolFailed, ToolRequest, TypedTool
from stentor.domains.sandbox.model import Access

MAX_BODY_BYTES = 1 << 20
METHODS = ("get", "head", "post", "put", "patch", "delete", "options")
_FORBIDDEN_HEADERS = {"host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer", "expect"}
_NAME, _VALUE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}\Z"), re.compile(r"[\x20-\x7e\t]{0,8192}\Z")


class HttpRequestArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(min_length=1, max_length=8192)]
    method: Annotated[str, Meta(description="GET unless named.", max_length=16)] = "GET"
    headers: Annotated[dict[str, str], Meta(max_length=64)] = {}
    body: Annotated[str, Meta(max_length=MAX_BODY_BYTES)] | None = None


class HttpRequest(TypedTool):
    """The operation is the method. Redirects are answered, not followed: the next request is judged by itself."""

    name = "http_request"
    description = "Makes an HTTP request to an allowed host and port; redirects are answered, not followed."
    operations = METHODS
    arguments_type = HttpRequestArguments

    def __init__(self, outbound: OutboundHttp) -> None:
        self._outbound = outbound

    def to_access(self, call: ToolRequest) -> Access:
        asked = self.parse_arguments(call)
        method = asked.method.lower()
        if method not in METHODS or call.operation not in (None, method):
            raise InvalidRequest(f"The method is one of {', '.join(METHODS)}, and the operation the same or left out.")
        for name, value in asked.headers.items():
            if name.lower() in _FORBIDDEN_HEADERS or not _NAME.match(name) or not _VALUE.match(value):
                raise InvalidRequest(f"The header {name!r} cannot be sent.")
        url = _target(asked.url)
        return Access(self.name, method, host=url.raw_host, port=url.port)

    def complete_access(self, access: Access) -> Access:
        """A request always has a host and a port: without them it is one to nowhere, which no allowlist has."""
        return msgspec.structs.replace(access, host=access.host or "", port=access.port or 0)

    async def execute(self, run: SandboxRun, call: ToolRequest) -> dict[str, Any]:
        import aiohttp  # a fifth of all imports at the start, for the first such call only

        asked = self.parse_arguments(call)
        try:
            url = _target(asked.url)
            self._outbound.check_url(str(url))
            return await self._send(asked, url)
        except TargetRefused:
            raise ToolFailed("The host's address is not public.") from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, TargetRefused):
                raise ToolFailed("The host's address is not public.") from None
            raise ToolFailed("The host cannot be reached.") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise ToolFailed(f"The request failed ({type(error).__name__}).") from None

    async def _send(self, asked: HttpRequestArguments, url: URL) -> dict[str, Any]:
        data = asked.body.encode() if asked.body is not None else None
        async with self._outbound.session.request(
            asked.method.upper(), url, headers=asked.headers, data=data, allow_redirects=False
        ) as answer:
            body = bytearray()
            async for chunk in answer.content.iter_chunked(65_536):
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise ToolFailed(f"The answer is larger than {MAX_BODY_BYTES} bytes.")
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return {"status": answer.status, "headers": headers} | _shown(bytes(body))


def _shown(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "encoding": "base64"}


def _target(text: str) -> URL:
    """As the client that sends it reads it, so that what is judged is what is called. Raises InvalidRequest."""
    try:
        url = URL(text)
        known = url.scheme in ("http", "https") and url.raw_host and url.port
    except ValueError:
        raise InvalidRequest("The address is not a valid URL.") from None
    if not known or url.user is not None or url.password is not None:
        raise InvalidRequest("The address must be an http or https URL without credentials.")
    return url
