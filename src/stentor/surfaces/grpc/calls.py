"""One call: who makes it, under which request id, and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import grpc
from grpc import StatusCode

from stentor.auth.principal import Principal
from stentor.core import trace_context
from stentor.core.errors import Unauthorized
from stentor.surfaces.grpc import refusals
from stentor.surfaces.grpc.refusals import Pairs
from stentor.web.request_context import GrpcCallDurations, choose_request_id, read_traceparent

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class Metadata:
    """What a client sent along: names in lower case, and bytes."""

    def __init__(self, pairs: Iterable[tuple[str, str | bytes]]) -> None:
        self.pairs = [(name.encode(), _bytes(value)) for name, value in pairs]

    def all(self, name: bytes) -> list[bytes]:
        return [value for found, value in self.pairs if found == name]

    def text(self, name: bytes) -> str | None:
        """The first of this name."""
        return next((value.decode("latin-1") for value in self.all(name)), None)


class Running:
    """The calls that are being answered."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self._count += 1
        self._idle.clear()

    def __exit__(self, *exception: object) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def ended(self) -> None:
        """Returns when there is none."""
        await self._idle.wait()


@dataclass
class Call:
    """`method` is its name, for metrics; `trailing` is what every answer to it carries, refusals too."""

    method: str
    metadata: Metadata
    times: GrpcCallDurations
    running: Running
    principal: Principal | None = None

    def __post_init__(self) -> None:
        self._started: float | None = time.perf_counter()
        self.request_id = choose_request_id(self.metadata.all(b"x-request-id"))
        self.traceparent = read_traceparent(self.metadata.all(b"traceparent"))
        self.trailing: Pairs = (("x-request-id", self.request_id),)

    @property
    def caller(self) -> Principal:
        """Fails closed when nothing authenticated it."""
        if self.principal is None:
            raise Unauthorized("Authentication required.")
        return self.principal

    @property
    def holder(self) -> str:
        """On whose account its stream is; all who need no key share one."""
        return f"{self.principal.tenant}/{self.principal.name}" if self.principal else ""

    @contextmanager
    def answering(self) -> Iterator[None]:
        """In this block the call is answered; a caller that leaves, or whose time is up, ends it in the middle."""
        try:
            with self.running, trace_context.use_traceparent(self.traceparent):
                yield
        except asyncio.CancelledError:
            self.answered(StatusCode.CANCELLED)
            raise

    def answered(self, code: StatusCode = StatusCode.OK) -> None:
        """The answer is there, or a stream has begun; the first of these counts."""
        if self._started is not None:
            self.times.observe(self.method, code.name, time.perf_counter() - self._started)
            self._started = None

    async def refuse(self, context: Context, error: Exception) -> NoReturn:
        """End the call with an error, whatever it is."""
        found = refusals.known(error, self.method, self.request_id)
        code = refusals.code_of(found)
        self.answered(code)
        trailing = (*self.trailing, *refusals.metadata_of(found, self.request_id))
        await context.abort(code, refusals.message_of(found), trailing)
        raise AssertionError("an abort ends the call")


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")
