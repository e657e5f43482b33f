"""The service as a command sees it: JSON in and out, refusals as sentences, rate limits waited out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from stentor.cli.output import FAILED, REFUSED, UNREACHABLE, CommandFailed, notice
from stentor.core import jsontext

STREAM_SILENCE = 45
"""Seconds without a byte after which a stream is dead; the service sends a heartbeat every 15."""
MAX_WAIT = 60
"""Seconds; the rate limit's window is no longer, whatever Retry-After says."""


class Refused(CommandFailed):
    """The service answered with an error. `status` is HTTP's, `reason` the service's stable code."""

    def __init__(self, status: int, reason: str, message: str, details: Any = None) -> None:
        shown = {"code": reason, "status": status} | ({"details": details} if details else {})
        super().__init__(f"{reason}: {message}", REFUSED if status < 500 else FAILED, shown)
        self.status = status
        self.reason = reason


class Api:
    """One service behind one client. `in_process` tells that it lives only while this command does."""

    def __init__(self, http: httpx.AsyncClient, where: str, key_source: str, *, in_process: bool = False) -> None:
        self._http = http
        self._where = where
        self._key_source = key_source
        self.in_process = in_process

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
        timeout = httpx.Timeout(30, connect=5, read=STREAM_SILENCE)
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
                raise self.unreachable(error) from None
            if answer.is_success:
                return self._value(answer)
            if answer.status_code != 429:
                raise self._failure(answer)
            await _wait(answer)

    def unreachable(self, error: httpx.TransportError) -> CommandFailed:
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return CommandFailed(f"The service on {self._where} did not answer in time.", UNREACHABLE)
        return CommandFailed(f"No service answers on {self._where}.", UNREACHABLE)

    def _value(self, answer: httpx.Response) -> Any:
        try:
            return jsontext.load(answer.text)
        except (msgspec.DecodeError, RecursionError):
            raise CommandFailed(f"What answers on {self._where} is not Stentor.", UNREACHABLE) from None

    def _failure(self, answer: httpx.Response) -> CommandFailed:
        """The service's own sentence, in whichever of its dialects."""
        body = self._value(answer)
        if not isinstance(body, dict):
            return CommandFailed(f"What answers on {self._where} is not Stentor.", UNREACHABLE)
        error = body.get("error")
        if isinstance(error, dict):
            reason, message = str(error.get("code")), str(error.get("message"))
            return Refused(answer.status_code, reason, message, error.get("details"))
        if answer.status_code == 401:
            hint = f"{body.get('message', '')} It came from {self._key_source}; give another in SERVICE_CLIENT_KEY."
            return Refused(401, "UNAUTHORIZED", hint if self._key_source else NO_KEY)
        reason = str(body.get("code", f"HTTP_{answer.status_code}"))
        return Refused(answer.status_code, reason, str(body.get("message", error)))


NO_KEY = "The service wants a key, and none was found: give one in SERVICE_CLIENT_KEY or with --key."


def segment(text: str) -> str:
    """An id as one segment of a path; one of dots alone would be taken for a way up."""
    quoted = quote(text, safe="")
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E")


async def _wait(answer: httpx.Response) -> None:
    """Wait as long as a 429 asks for."""
    value = answer.headers.get("Retry-After", "")
    seconds = min(int(value), MAX_WAIT) if value.isascii() and value.isdigit() else 1
    notice(f"The rate limit of this key is reached; going on in {seconds} s.", "yellow")
    await asyncio.sleep(seconds)
