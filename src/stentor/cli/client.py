"""How a command reaches the service.

First the address that was given (`--url`, SERVICE_URL); else the process that holds the data folder;
else, when nobody does, the command does the work itself, in its own process (`local`).

The service as a command sees it: JSON in and out, refusals as sentences, rate limits waited out.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from stentor.auth.api_keys import admin_key_file
from stentor.cli.command import Access, ServiceTarget
from stentor.cli.output import EXIT_FAILED, EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, CommandFailed, print_notice
from stentor.core import jsontext
from stentor.core import settings as settings_module
from stentor.core.errors import StartRefused
from stentor.core.filesystem import LockHolder, read_lock_holder
from stentor.core.settings import Settings

T = TypeVar("T")
OWNER_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for a holder of the folder that does not answer anywhere yet, or leaves again."""
MAX_LOCK_ATTEMPTS = 3
"""Refused starts in a row with no holder to be seen: somebody only looked at the lock, or it is something else."""


def run_with_client(target: ServiceTarget, work: Callable[[ServiceClient], Awaitable[T]], *, access: Access) -> T:
    """Connect, work, leave. Raises CommandFailed and StentorError."""
    options = {"SERVICE_DATA_DIR": target.data_dir, "SERVICE_URL": target.url, "SERVICE_CLIENT_KEY": target.key}
    settings = settings_module.load(os.environ, options)

    async def connected() -> T:
        async with open_client(settings, access=access) as api:
            return await work(api)

    return asyncio.run(connected())


@asynccontextmanager
async def open_client(settings: Settings, *, access: Access) -> AsyncIterator[ServiceClient]:
    """The service that the settings mean. `access` counts only when the command does the work itself."""
    async with AsyncExitStack() as stack:
        if settings.client.url:
            yield await stack.enter_async_context(_over_network(settings, settings.client.url))
        else:
            yield await _here(settings, access, stack)


async def _here(settings: Settings, access: Access, stack: AsyncExitStack) -> ServiceClient:
    """The holder of the folder, or this process. Another command may take the folder first: then ask again."""
    until = time.monotonic() + OWNER_TIMEOUT_SECONDS
    for attempt in itertools.count():
        if address := await _owners_address(settings):
            return await stack.enter_async_context(_over_network(settings, address))
        try:
            return await stack.enter_async_context(_in_process(settings, access))
        except StartRefused:
            held = _owner(settings) is not None
            if time.monotonic() > until or (attempt >= MAX_LOCK_ATTEMPTS and not held):
                raise
        await asyncio.sleep(0.05)
    raise AssertionError


@asynccontextmanager
async def _in_process(settings: Settings, access: Access) -> AsyncIterator[ServiceClient]:
    # The whole kernel; not for a command that only asks a running service.
    from stentor.cli import local_service

    async with local_service.open_local_service(settings, os.environ, access=access) as service:
        transport = httpx.ASGITransport(service.app)
        headers = {"X-API-Key": service.key}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
            yield ServiceClient(http, "this process", service.key_source, in_process=True)


@asynccontextmanager
async def _over_network(settings: Settings, address: str) -> AsyncIterator[ServiceClient]:
    url = parse_service_url(address)
    key, source = find_key(settings, url)
    headers = {"X-API-Key": key} if key else {}
    # A proxy of the environment stands between us and others, never between us and ourselves.
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=httpx.Timeout(30, connect=5), trust_env=not is_loopback(url)
    ) as http:
        yield ServiceClient(http, str(url.copy_with(userinfo=b"")), source)


def parse_service_url(address: str) -> httpx.URL:
    """Raises CommandFailed."""
    try:
        url = httpx.URL(address.rstrip("/"))
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or "%" in url.host:
        raise CommandFailed("The service's address must look like http://127.0.0.1:8080.", EXIT_USAGE)
    return url


def is_loopback(url: httpx.URL) -> bool:
    try:
        return ip_address(url.host).is_loopback
    except ValueError:
        return url.host == "localhost"


def find_key(settings: Settings, url: httpx.URL) -> tuple[str, str]:
    """The key to send and where it came from: given, in the data folder, or MCP_API_KEY; both empty if none.

    The key of the folder stays on this machine: it is not sent to a service elsewhere.
    """
    path = admin_key_file(settings.storage.data_dir)
    if settings.client.key:
        source = "--key" if settings.sources["SERVICE_CLIENT_KEY"] == "option" else "SERVICE_CLIENT_KEY"
        key = settings.client.key
    elif is_loopback(url) and path.exists():
        key, source = _read(path), str(path)
    else:
        key, source = settings.auth.shared_key, "MCP_API_KEY" if settings.auth.shared_key else ""
    if not (key.isascii() and key.isprintable()):
        raise CommandFailed(f"The key from {source} has characters that no header can carry.", EXIT_USAGE)
    return key, source


def _read(path: os.PathLike[str]) -> str:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - any path-like
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"The key file {path} cannot be read ({type(error).__name__}).", EXIT_FAILED) from None


async def _owners_address(settings: Settings) -> str | None:
    """Where the holder of the folder answers; None when nobody holds it. Raises CommandFailed."""
    until = time.monotonic() + OWNER_TIMEOUT_SECONDS
    while (owner := _owner(settings)) is not None and owner.gateway is None:
        if time.monotonic() > until:
            raise CommandFailed(
                f"Process {owner.pid} holds the data folder {settings.storage.data_dir} and answers nowhere yet.",
                EXIT_UNREACHABLE,
            )
        await asyncio.sleep(0.05)
    return owner.gateway if owner else None


def _owner(settings: Settings) -> LockHolder | None:
    try:
        return read_lock_holder(settings.storage.data_dir)
    except OSError as error:
        raise StartRefused(f"The data folder {settings.storage.data_dir} cannot be read: {error.strerror}.") from None


STREAM_READ_TIMEOUT_SECONDS = 45
"""Seconds without a byte after which a stream is dead; the service sends a heartbeat every 15."""
MAX_RETRY_AFTER_SECONDS = 60
"""Seconds; the rate limit's window is no longer, whatever Retry-After says."""


class RequestFailed(CommandFailed):
    """The service answered with an error. `status` is HTTP's, `reason` the service's stable code."""

    def __init__(self, status: int, reason: str, message: str, details: Any = None) -> None:
        shown = {"code": reason, "status": status} | ({"details": details} if details else {})
        super().__init__(f"{reason}: {message}", EXIT_REFUSED if status < 500 else EXIT_FAILED, shown)
        self.status = status
        self.reason = reason


class ServiceClient:
    """One service behind one client. `in_process` tells that it lives only while this command does."""

    def __init__(self, http: httpx.AsyncClient, where: str, key_source: str, *, in_process: bool = False) -> None:
        self._http = http
        self._where = where
        self._key_source = key_source
        self.is_in_process = in_process

    async def get(self, path: str, /, **params: Any) -> Any:
        """Parameters that are None are left out."""
        return await self._call("GET", path, None, {k: v for k, v in params.items() if v is not None})

    async def post(self, path: str, body: Any = None) -> Any:
        return await self._call("POST", path, body, {})

    async def patch(self, path: str, body: Any) -> Any:
        return await self._call("PATCH", path, body, {})

    async def delete(self, path: str) -> Any:
        return await self._call("DELETE", path, None, {})

    @asynccontextmanager
    async def stream(self, path: str, last_event_id: str | None) -> AsyncIterator[httpx.Response]:
        """An open event stream. Raises Refused, and httpx.TransportError when the connection breaks."""
        headers = {"Last-Event-ID": last_event_id} if last_event_id else {}
        timeout = httpx.Timeout(30, connect=5, read=STREAM_READ_TIMEOUT_SECONDS)
        while True:
            async with self._http.stream("GET", f"/api/v1{path}", headers=headers, timeout=timeout) as answer:
                if answer.is_success:
                    yield answer
                    return
                await answer.aread()
                if answer.status_code != 429:
                    raise self._failure(answer)
            await _wait(answer)

    async def _call(self, method: str, path: str, body: Any, params: dict[str, Any]) -> Any:
        content = None if body is None else jsontext.encode(body)
        headers = {} if body is None else {"Content-Type": "application/json"}
        while True:
            try:
                answer = await self._http.request(
                    method, f"/api/v1{path}", params=params, content=content, headers=headers
                )
            except httpx.TransportError as error:
                raise self.unreachable_error(error) from None
            if answer.is_success:
                return self._value(answer)
            if answer.status_code != 429:
                raise self._failure(answer)
            await _wait(answer)

    def unreachable_error(self, error: httpx.TransportError) -> CommandFailed:
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return CommandFailed(f"The service on {self._where} did not answer in time.", EXIT_UNREACHABLE)
        return CommandFailed(f"No service answers on {self._where}.", EXIT_UNREACHABLE)

    def _value(self, answer: httpx.Response) -> Any:
        try:
            return jsontext.load(answer.text)
        except (msgspec.DecodeError, RecursionError):
            raise CommandFailed(f"What answers on {self._where} is not Stentor.", EXIT_UNREACHABLE) from None

    def _failure(self, answer: httpx.Response) -> CommandFailed:
        """The service's own sentence, in whichever of its dialects."""
        body = self._value(answer)
        if not isinstance(body, dict):
            return CommandFailed(f"What answers on {self._where} is not Stentor.", EXIT_UNREACHABLE)
        error = body.get("error")
        if isinstance(error, dict):
            reason, message = str(error.get("code")), str(error.get("message"))
            return RequestFailed(answer.status_code, reason, message, error.get("details"))
        if answer.status_code == 401:
            hint = f"{body.get('message', '')} It came from {self._key_source}; give another in SERVICE_CLIENT_KEY."
            return RequestFailed(401, "UNAUTHORIZED", hint if self._key_source else NO_KEY_MESSAGE)
        reason = str(body.get("code", f"HTTP_{answer.status_code}"))
        return RequestFailed(answer.status_code, reason, str(body.get("message", error)))


NO_KEY_MESSAGE = "The service wants a key, and none was found: give one in SERVICE_CLIENT_KEY or with --key."


def quote_segment(text: str) -> str:
    """An id as one segment of a path; one of dots alone would be taken for a way up."""
    quoted = quote(text, safe="")
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


async def _wait(answer: httpx.Response) -> None:
    """Wait as long as a 429 asks for."""
    value = answer.headers.get("Retry-After", "")
    seconds = min(int(value), MAX_RETRY_AFTER_SECONDS) if value.isascii() and value.isdigit() else 1
    print_notice(f"The rate limit of this key is reached; going on in {seconds} s.", "yellow")
    await asyncio.sleep(seconds)
