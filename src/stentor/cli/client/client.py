"""The client that commands use to call the service: JSON in and out, errors as readable messages, 429 retried.

It connects to the given address (`--url`, SERVICE_URL), else to the process that holds the lock of the data folder.
Without either, the command runs the service in its own process (`local_service`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from stentor.cli.client import connection
from stentor.cli.client.responses import Response
from stentor.cli.command import Access, ServiceTarget
from stentor.cli.output import EXIT_FAILED, EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, CommandFailed, print_notice
from stentor.cli.references import (
    MAX_COMPARED_REFERENCES,
    MAX_LISTED_REFERENCES,
    Referable,
    ambiguous_error,
    describe_unknown,
)
from stentor.core import jsontext
from stentor.core import settings as settings_module
from stentor.core.errors import StartRefused
from stentor.core.filesystem import LockHolder, read_lock_holder
from stentor.core.jsontext import JsonObject
from stentor.core.settings import Settings

T = TypeVar("T")
EMPTY_ID = "An id or a name is empty."
OWNER_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for a lock holder that has not published its address yet, or is shutting down."""
MAX_LOCK_ATTEMPTS = 3
"""Failed starts without a visible lock holder before giving up: the failure then has another reason than the lock."""
STREAM_READ_TIMEOUT_SECONDS = 45
"""Seconds without a byte after which a stream counts as broken; the service sends a heartbeat every 15."""
MAX_RETRY_AFTER_SECONDS = 60
"""Upper bound for Retry-After, in seconds; the window of the rate limit is not longer."""
GATEWAY_STATUSES = (502, 503, 504)
"""Statuses of a proxy whose service does not respond."""
PLAIN_SERVER_REASONS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""OpenSSL's reasons, by version, when the answer to a TLS handshake is not TLS."""
HINTS = {
    "ROUTING_CAPABILITY_UNAVAILABLE": " To register an agent: stentor agent register --help",
}
"""What the user can do, by error code; added to the message."""
LISTS = {
    "webhooks": "webhook list",
    "schedules": "schedule list",
    "keys": "keys list",
    "provenance": "task list",
}
"""The command that lists the records of a path; those of `with_id` name it themselves."""
NO_KEY_MESSAGE = "The service requires an API key, and none was found: set SERVICE_CLIENT_KEY or pass --key."


def run_with_client(target: ServiceTarget, work: Callable[[ServiceClient], Awaitable[T]], *, access: Access) -> T:
    """Run `work` with a connected client and return its result. Raises CommandFailed and StentorError."""
    # Stripped like the environment variable.
    key = target.key and target.key.strip()
    options = {"SERVICE_DATA_DIR": target.data_dir, "SERVICE_URL": target.url, "SERVICE_CLIENT_KEY": key}
    settings = settings_module.load(os.environ, options)

    async def connect_and_work() -> T:
        async with open_client(settings, access=access) as api:
            return await work(api)

    return asyncio.run(connect_and_work())


@asynccontextmanager
async def open_client(settings: Settings, *, access: Access) -> AsyncIterator[ServiceClient]:
    """Open a client of the configured service; `access` matters only if the service runs in this process."""
    async with AsyncExitStack() as stack:
        if settings.client.url:
            yield await stack.enter_async_context(_over_network(settings, settings.client.url))
        else:
            yield await _connect_to_folder(settings, access, stack)


async def _connect_to_folder(settings: Settings, access: Access, stack: AsyncExitStack) -> ServiceClient:
    """Connect to the process that holds the data folder lock, or open the service in this process."""
    until = time.monotonic() + OWNER_TIMEOUT_SECONDS
    for attempt in itertools.count():
        if address := await _wait_for_owner_address(settings):
            return await stack.enter_async_context(_over_network(settings, address))
        try:
            # May fail because a service is just acquiring the lock: then the loop finds its address.
            return await stack.enter_async_context(_in_process(settings, access))
        except StartRefused:
            # Another command may have acquired the lock in between: look for its holder again.
            is_locked = _read_owner(settings) is not None
            if time.monotonic() > until or (attempt >= MAX_LOCK_ATTEMPTS and not is_locked):
                raise
        await asyncio.sleep(0.05)
    raise AssertionError


@asynccontextmanager
async def _in_process(settings: Settings, access: Access) -> AsyncIterator[ServiceClient]:
    # Imported late: a command that calls a running service does not need the kernel.
    from stentor.cli.service import local_service

    async with local_service.open_local_service(settings, os.environ, access=access) as service:
        transport = httpx.ASGITransport(service.app)
        headers = {"X-API-Key": service.key}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
            yield ServiceClient(http, "this process", service.key_source, in_process=True)


@asynccontextmanager
async def _over_network(settings: Settings, address: str) -> AsyncIterator[ServiceClient]:
    url = connection.parse_service_url(address)
    key, source = connection.find_key(settings, url)
    async with connection.create_http_client(settings, url, key) as http:
        yield ServiceClient(http, str(url.copy_with(userinfo=b"")), source)


async def _wait_for_owner_address(settings: Settings) -> str | None:
    """Return the gateway address of the process that holds the lock; None if the lock is free. Raises CommandFailed."""
    until = time.monotonic() + OWNER_TIMEOUT_SECONDS
    while (owner := _read_owner(settings)) is not None and owner.gateway is None:
        if time.monotonic() > until:
            raise CommandFailed(
                f"Process {owner.pid} has locked the data folder {settings.storage.data_dir} but does not accept "
                "requests yet. Try again shortly.",
                EXIT_UNREACHABLE,
            )
        await asyncio.sleep(0.05)
    return owner.gateway if owner else None


def _read_owner(settings: Settings) -> LockHolder | None:
    try:
        return read_lock_holder(settings.storage.data_dir)
    except OSError as error:
        raise StartRefused(f"The data folder {settings.storage.data_dir} cannot be read: {error.strerror}.") from None


class RequestFailed(CommandFailed):
    """An error response of the service: `status` is the HTTP status, `reason` the stable error code."""

    def __init__(self, status: int, reason: str, message: str, details: Any = None) -> None:
        document = {"code": reason, "status": status} | ({"details": details} if details else {})
        super().__init__(f"{reason}: {message}", EXIT_REFUSED if status < 500 else EXIT_FAILED, document)
        self.status = status
        self.reason = reason


class GatewayFailed(RequestFailed):
    """An error response of a proxy, which does not reach the service."""

    def __init__(self, status: int, where: str) -> None:
        message = f"A proxy at {where} does not reach the service. Is it running?"
        super().__init__(status, f"HTTP_{status}", message)
        self.code = EXIT_UNREACHABLE


class ServiceClient:
    """A client of one service. With `in_process` the service runs in this process and ends with the command."""

    def __init__(self, http: httpx.AsyncClient, where: str, key_source: str, *, in_process: bool = False) -> None:
        self._http = http
        self._where = where
        self._key_source = key_source
        self.is_in_process = in_process

    async def get(self, path: str, kind: type[T], /, **params: Any) -> Response[T]:
        """Send a GET request; parameters that are None are omitted."""
        return await self.request("GET", path, kind, params=omit_none(params))

    async def post(self, path: str, kind: type[T], body: Any = None) -> Response[T]:
        return await self.request("POST", path, kind, body)

    async def request(
        self, method: str, path: str, kind: type[T], body: Any = None, params: JsonObject | None = None
    ) -> Response[T]:
        """Send a request until it is not rate limited. Raises CommandFailed; RequestFailed for an error response."""
        content = None if body is None else jsontext.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        while True:
            try:
                response = await self._http.request(
                    method, f"/api/v1{path}", params=params, content=content, headers=headers
                )
            except httpx.TransportError as error:
                raise self.unreachable_error(error) from None
            if response.is_success:
                return Response(self._decode(response), kind)
            if response.status_code != 429:
                raise self._failure(response)
            await _wait_for_rate_limit(response)

    async def with_id(self, kind: type[Referable], text: str, call: Callable[[str], Awaitable[T]]) -> T:
        """Call with an id; if there is no such record, again with the id of the only one that `text` refers to.

        `text` may be an id, the beginning or the end of one, or the name of an agent. Raises CommandFailed.
        """
        try:
            return await call(text)
        except RequestFailed as error:
            # Looked up only after the id was not found, so that a full id costs one request.
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            labels = await self._find_labels(kind, text)
            if labels is not None and not labels:
                raise RequestFailed(error.status, error.reason, await self._describe_unknown(kind, text)) from None
            record_id = next(iter(labels or ()), text)
            # Nothing else was found, so the first error stands.
            if record_id == text:
                raise
        return await call(record_id)

    async def find_id(self, kind: type[Referable], text: str, *, must_exist: bool = False) -> str:
        """Return the id of the only record that `text` refers to.

        Without one return `text` itself, or raise CommandFailed with `must_exist`. Raises it for several, too.
        """
        if not text:
            raise CommandFailed(EMPTY_ID, EXIT_USAGE)
        labels = await self._find_labels(kind, text)
        if labels is None:
            return text
        if not labels and must_exist:
            raise CommandFailed(await self._describe_unknown(kind, text), EXIT_REFUSED)
        return next(iter(labels), text)

    async def _describe_unknown(self, kind: type[Referable], text: str) -> str:
        """Return that `text` refers to no record, with a record that has a similar name if there is one."""
        try:
            known = (await self.get(kind.path, kind, limit=MAX_COMPARED_REFERENCES)).value.labels
        except CommandFailed:  # the suggestion is all that is missing then
            known = {}
        return describe_unknown(kind.noun, text, known)

    async def _find_labels(self, kind: type[Referable], text: str) -> dict[str, str] | None:
        """Return the record that `text` refers to, if any; None if the service does not say. Raises for several."""
        try:
            labels = (await self.get(kind.path, kind, ref=text, limit=MAX_LISTED_REFERENCES + 1)).value.labels
        except RequestFailed:  # not a possible reference, or no permission to list
            return None
        if text in labels:
            return {text: labels[text]}
        if len(labels) > 1:
            raise ambiguous_error(text, labels)
        return labels

    @asynccontextmanager
    async def stream(self, path: str, last_event_id: str | None) -> AsyncIterator[httpx.Response]:
        """Open an event stream. Raises RequestFailed, and httpx.TransportError when the connection breaks."""
        headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
        # The read timeout, because a stream is silent for longer than other responses.
        timeout = httpx.Timeout(connection.TIMEOUT_SECONDS, read=STREAM_READ_TIMEOUT_SECONDS)
        while True:
            async with self._http.stream("GET", f"/api/v1{path}", headers=headers, timeout=timeout) as response:
                if response.is_success:
                    yield response
                    return
                # The body of a stream must be read before the error in it can be.
                await response.aread()
                if response.status_code != 429:
                    raise self._failure(response)
            await _wait_for_rate_limit(response)

    def unreachable_error(self, error: httpx.TransportError) -> CommandFailed:
        if isinstance(error, httpx.ConnectTimeout):
            return CommandFailed(
                f"The service at {self._where} has not accepted a connection for {connection.TIMEOUT_SECONDS:g} s. "
                "It may be overloaded, or the address wrong.",
                EXIT_UNREACHABLE,
            )
        if isinstance(error, httpx.TimeoutException):
            return CommandFailed(f"The service at {self._where} did not respond in time.", EXIT_UNREACHABLE)
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            problem = _describe_verification(str(error))
            return CommandFailed(f"The service at {self._where} has a certificate {problem}", EXIT_UNREACHABLE)
        if any(reason in str(error) for reason in PLAIN_SERVER_REASONS):
            plain = self._where.replace("https://", "http://", 1)
            message = f"The server at {self._where} speaks HTTP without TLS. Use {plain}"
            return CommandFailed(message, EXIT_UNREACHABLE)
        if _is_unresolved(error):
            return CommandFailed(f"The name in {self._where} cannot be resolved. Check the address.", EXIT_UNREACHABLE)
        if not isinstance(error, httpx.ConnectError):
            return CommandFailed(f"The connection to {self._where} broke during the request.", EXIT_UNREACHABLE)
        return CommandFailed(f"Cannot connect to a service at {self._where}. Is it running?", EXIT_UNREACHABLE)

    def _not_stentor_error(self, response: httpx.Response) -> CommandFailed:
        if response.status_code in GATEWAY_STATUSES:
            return GatewayFailed(response.status_code, self._where)
        if response.status_code == 413:
            message = f"A proxy at {self._where} accepts no request of this size; in nginx, raise client_max_body_size."
            return RequestFailed(413, "HTTP_413", message)
        target = response.headers.get("Location")
        redirection = f" It redirects to {target}." if target else ""
        message = f"The server at {self._where} is not Stentor.{redirection} Check the address."
        return CommandFailed(message, EXIT_UNREACHABLE)

    def _decode(self, response: httpx.Response) -> Any:
        try:
            return jsontext.load(response.text)
        except (msgspec.DecodeError, RecursionError):
            raise self._not_stentor_error(response) from None

    def _failure(self, response: httpx.Response) -> CommandFailed:
        """Build the exception for an error response, in the error envelope or in the older form of 401 and 429."""
        body = self._decode(response)
        if not isinstance(body, dict):
            return self._not_stentor_error(response)
        error = body.get("error")
        if isinstance(error, dict):
            reason, message = str(error.get("code")), str(error.get("message"))
            message += HINTS.get(reason, "")
            if response.status_code == HTTPStatus.NOT_FOUND:
                message += _describe_list(response.request.url.path)
            return RequestFailed(response.status_code, reason, message, error.get("details"))
        if response.status_code == 401:
            hint = f"The key came from {self._key_source}; set another one in SERVICE_CLIENT_KEY."
            if self._key_source.endswith("admin.key"):
                hint += " A service with keys in SERVICE_API_KEY_* or MCP_API_KEY does not accept that file's."
            message = f"{body.get('message', '')} {hint}" if self._key_source else NO_KEY_MESSAGE
            return RequestFailed(401, "UNAUTHORIZED", message)
        reason = str(body.get("code", f"HTTP_{response.status_code}"))
        return RequestFailed(response.status_code, reason, str(body.get("message", error)))


def on_record(
    kind: type[Referable], ref: str, call: Callable[[ServiceClient, str], Awaitable[T]]
) -> Callable[[ServiceClient], Awaitable[T]]:
    """Return the call with the path of the record that the user refers to, as `with_id` finds it."""
    return lambda api: api.with_id(kind, ref, lambda found: call(api, f"{kind.path}/{quote_segment(found)}"))


def _describe_list(path: str) -> str:
    """Return how to list the records of a kind of which `path` names an unknown one."""
    kind, *record = path.partition("/api/v1/")[2].split("/")
    # A longer path names a part of a record, which that list does not have.
    return f" To list them: stentor {LISTS[kind]}" if kind in LISTS and len(record) in (1, 2) else ""


def _is_unresolved(error: BaseException | None) -> bool:
    """Return whether an error is caused by the host name of the service."""
    while error is not None and not isinstance(error, socket.gaierror):
        error = error.__cause__ or error.__context__
    return error is not None


def _describe_verification(error: str) -> str:
    """Return what is wrong with a certificate, from OpenSSL's error, and what to do."""
    reason = error.partition("certificate verify failed: ")[2].partition(" (_ssl")[0].rstrip(".") or "unknown reason"
    if "expired" in reason:
        return "that has expired. Renew it."
    if "mismatch" in reason:
        return f"for another name ({reason}). Use an address that it names."
    return f"that is not trusted ({reason}). Set SSL_CERT_FILE to a file with it or with its authority."


def omit_none(values: JsonObject) -> JsonObject:
    return {name: value for name, value in values.items() if value is not None}


def quote_segment(text: str) -> str:
    """Return an id encoded as one segment of a path. Raises CommandFailed for an empty one."""
    if not text:
        raise CommandFailed(EMPTY_ID, EXIT_USAGE)
    quoted = quote(text, safe="")
    # httpx would resolve `.` and `..` as relative segments, and call another route.
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


async def _wait_for_rate_limit(response: httpx.Response) -> None:
    """Wait as long as Retry-After of a 429 says; one second without it."""
    value = response.headers.get("Retry-After", "")
    seconds = min(int(value), MAX_RETRY_AFTER_SECONDS) if value.isascii() and value.isdigit() else 1
    print_notice(f"Rate limit of this key reached; retrying in {seconds} s.", "yellow")
    await asyncio.sleep(seconds)
