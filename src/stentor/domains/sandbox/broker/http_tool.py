"""The tool `http_request`: requests to hosts of the agent's allow-list, through the service's outbound guard."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta
from yarl import URL

from stentor.core.errors import InvalidRequest
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.http_client.ssrf_guard import TargetRefused
from stentor.core.jsontext import JsonObject
from stentor.core.lazy_import import lazy_module
from stentor.domains.sandbox.broker.model import (
    SandboxRun,
    ToolFailed,
    ToolInterrupted,
    ToolRequest,
    TypedTool,
    encode_content,
)
from stentor.domains.sandbox.model import Access

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = lazy_module("aiohttp")

MAX_BODY_BYTES = 1 << 20
_NOT_REPEATABLE = frozenset(("post", "patch"))
"""The methods that HTTP (RFC 9110, 9.2.2) does not call idempotent."""
_SAFE = frozenset(("get", "head", "options"))
"""The methods that change nothing (RFC 9110, 9.2.1)."""
METHODS = ("get", "head", "post", "put", "patch", "delete", "options")
# Headers that would change the connection or the framing of the request.
_FORBIDDEN_HEADERS = {"host", "connection", "content-length", "transfer-encoding", "upgrade", "te", "trailer", "expect"}
_NAME, _VALUE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}\Z"), re.compile(r"[\x20-\x7e\t]{0,8192}\Z")


class HttpRequestArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: Annotated[str, Meta(min_length=1, max_length=8192)]
    method: Annotated[str, Meta(description="GET unless named.", max_length=16)] = "GET"
    headers: Annotated[dict[str, str], Meta(max_length=64)] = {}
    body: Annotated[str, Meta(max_length=MAX_BODY_BYTES)] | None = None


class HttpRequest(TypedTool):
    """The operation is the method. Redirects are returned, not followed: each request needs its own check."""

    name = "http_request"
    description = "Makes an HTTP request to an allowed host and port; redirects are returned, not followed."
    operations = METHODS
    arguments_type = HttpRequestArguments

    def __init__(self, outbound: OutboundHttp) -> None:
        self._outbound = outbound

    def to_access(self, call: ToolRequest) -> Access:
        arguments: HttpRequestArguments = self.parse_arguments(call)
        method = arguments.method.lower()
        if method not in METHODS or call.operation not in (None, method):
            raise InvalidRequest(f"The method must be one of {', '.join(METHODS)}, the operation the same or omitted.")
        for name, value in arguments.headers.items():
            if name.lower() in _FORBIDDEN_HEADERS or not _NAME.match(name) or not _VALUE.match(value):
                raise InvalidRequest(f"The header {name!r} cannot be sent.")
        url = _parse_url(arguments.url)
        return Access(self.name, method, host=url.raw_host, port=url.port)

    def is_repeatable(self, call: ToolRequest) -> bool:
        return str(call.arguments.get("method", "get")).lower() not in _NOT_REPEATABLE

    def with_key(self, call: ToolRequest, key: str) -> ToolRequest:
        headers = call.arguments.get("headers") or {}
        if not isinstance(headers, dict) or any(str(name).lower() == "idempotency-key" for name in headers):
            return call
        arguments = call.arguments | {"headers": headers | {"Idempotency-Key": key}}
        return msgspec.structs.replace(call, arguments=arguments)

    def complete_access(self, access: Access) -> Access:
        """Add an empty host and port 0 where they are missing: no allow-list has them, so the access is denied."""
        return msgspec.structs.replace(access, host=access.host or "", port=access.port or 0)

    async def execute(self, run: SandboxRun, call: ToolRequest) -> JsonObject:
        arguments: HttpRequestArguments = self.parse_arguments(call)
        try:
            url = _parse_url(arguments.url)
            self._outbound.check_url(str(url))
            return await self._send(arguments, url)
        except TargetRefused:
            raise ToolFailed("The host's address is not public.") from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, TargetRefused):
                raise ToolFailed("The host's address is not public.") from None
            # Not ToolInterrupted: nothing was sent, so the call may be made again.
            raise ToolFailed("The host cannot be reached.") from None
        except (aiohttp.ClientError, ValueError) as error:
            raise ToolInterrupted(f"The request failed ({type(error).__name__}).") from None

    async def _send(self, arguments: HttpRequestArguments, url: URL) -> JsonObject:
        """Return the response; the body is left out, with a notice, if it is too long. Raises ToolFailed."""
        data = arguments.body.encode() if arguments.body is not None else None
        async with self._outbound.session.request(
            arguments.method.upper(), url, headers=arguments.headers, data=data, allow_redirects=False
        ) as response:
            headers = {name.lower(): _to_text(value) for name, value in response.headers.items()}
            answer: JsonObject = {"status": response.status, "headers": headers}
            body = bytearray()
            async for chunk in response.content.iter_chunked(65_536):
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    reason = f"The response is larger than {MAX_BODY_BYTES} bytes"
                    if arguments.method.lower() in _SAFE:
                        raise ToolFailed(f"{reason}.")
                    # Not an error, from which the caller would conclude that the request did nothing.
                    notice = f"{reason}, so its body is left out. The server has answered the request."
                    return answer | {"body": "", "encoding": "utf-8", "notice": notice}
            text, encoding = encode_content(bytes(body))
            return answer | {"body": text, "encoding": encoding}


def _to_text(value: str) -> str:
    """Return a header's value as text that can be sent on; bytes that are not UTF-8 are replaced."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _parse_url(text: str) -> URL:
    """Parse the URL with the HTTP client's own parser, so that the checked host is the called one.

    Raises InvalidRequest.
    """
    try:
        url = URL(text)
        is_complete = url.scheme in ("http", "https") and url.raw_host and url.port
    except ValueError:
        raise InvalidRequest("The address is not a valid URL.") from None
    if not is_complete or url.user is not None or url.password is not None:
        raise InvalidRequest("The address must be an http or https URL without credentials.")
    return url
