"""The context of one call: its metadata, caller, request id, duration, and how it is aborted with an error.

Also the limit of open streams per caller, and the end of streams when the service stops. A client gets an error as a
status, `stentor-code` in the metadata, and google.rpc.Status with details.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

import grpc
from fastapi.exceptions import RequestValidationError
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from stentor.auth.principal import Principal
from stentor.core import jsontext, trace_context
from stentor.core.errors import ServiceUnavailable, StentorError, Unauthorized, drop_tracebacks
from stentor.core.jsontext import JsonObject
from stentor.surfaces.grpc.codes import status_of
from stentor.web.errors import UNEXPECTED_MESSAGE, validation_error
from stentor.web.request_context import GrpcCallDurations, choose_request_id, read_traceparent
from stentor.web.sse import ENDED_MESSAGE, StreamLimit

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
STOPPING_MESSAGE = "The service is stopping. Call again."
CALLER_CHECK_SECONDS = 15.0
"""How often the key of an open stream is checked while nothing is sent; as often as event streams check it."""
DOMAIN = "stentor"
"""The domain of the codes in ErrorInfo."""
# In bytes. Clients reject metadata above 8 KiB in total, and percent-encoding can triple the message.
MAX_MESSAGE_BYTES, MAX_DETAILS_BYTES, MAX_FIELDS_BYTES = 400, 1_000, 1_500
MetadataPairs = tuple[tuple[str, str | bytes], ...]
log = logging.getLogger(__name__)


class Metadata:
    """The metadata of a request, as bytes like the headers of an HTTP request; names are in lower case."""

    def __init__(self, pairs: Iterable[tuple[str, str | bytes]]) -> None:
        self.pairs = [(name.encode(), _to_bytes(value)) for name, value in pairs]

    def get_all(self, name: bytes) -> list[bytes]:
        return [value for pair_name, value in self.pairs if pair_name == name]

    def get_text(self, name: bytes) -> str | None:
        """Return the first value of a name."""
        return next((value.decode("latin-1") for value in self.get_all(name)), None)


class ActiveCalls:
    """Counts the calls that are being processed; the server waits for them when it stops."""

    def __init__(self) -> None:
        self._count = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def __enter__(self) -> None:
        self._count += 1
        # An event and not a poll, so that the stop ends with the last call.
        self._idle.clear()

    def __exit__(self, *exception: object) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no call is active."""
        await self._idle.wait()


@dataclass
class Call:
    """One call. `method` is its name in metrics; `trailing` is sent with every response, errors included."""

    method: str
    metadata: Metadata
    durations: GrpcCallDurations
    active: ActiveCalls
    principal: Principal | None = None
    find_caller: Callable[[], object] | None = None
    """Authenticates the caller again; None for a public method."""

    def __post_init__(self) -> None:
        self._started: float | None = time.perf_counter()
        self.request_id = choose_request_id(self.metadata.get_all(b"x-request-id"))
        self.traceparent = read_traceparent(self.metadata.get_all(b"traceparent"))
        self.trailing: MetadataPairs = (("x-request-id", self.request_id),)

    @property
    def caller(self) -> Principal:
        """The authenticated caller. Fails closed: raises Unauthorized if there is none."""
        if self.principal is None:
            raise Unauthorized("Authentication required.")
        return self.principal

    @property
    def stream_owner(self) -> str:
        """The key under which the call's stream is counted; all callers without authentication share one."""
        return self.principal.stream_owner if self.principal else ""

    @property
    def is_unchanged(self) -> bool:
        """Whether the caller's key is still valid, with the same permissions."""
        return self.find_caller is None or self.find_caller() == self.principal

    def require_unchanged(self) -> None:
        """Raise Unauthorized once the caller's key is no longer valid, or gives other permissions."""
        if not self.is_unchanged:
            raise Unauthorized(ENDED_MESSAGE)

    @contextmanager
    def track(self) -> Iterator[None]:
        """Count the call as active in this block, and record it as CANCELLED if the client cancels or times out."""
        try:
            # The trace is set in the task of the call, so what it awaits inherits it.
            with self.active, trace_context.TraceparentScope(self.traceparent):
                yield
        except asyncio.CancelledError:
            self.record(StatusCode.CANCELLED)
            raise

    def record(self, code: StatusCode = StatusCode.OK) -> None:
        """Record the duration until the response, or until a stream begins. Only the first call has an effect."""
        # A stream that fails after its begin would otherwise be counted twice.
        if self._started is not None:
            self.durations.observe(self.method, code.name, time.perf_counter() - self._started)
            self._started = None

    async def abort(self, context: Context, error: Exception) -> NoReturn:
        """End the call with the status of an error."""
        known_error = to_stentor_error(error, self.method, self.request_id)
        drop_tracebacks(error)
        code = status_code(known_error)
        self.record(code)
        trailing = (*self.trailing, *error_metadata(known_error, self.request_id))
        await context.abort(code, status_message(known_error), trailing)
        raise AssertionError("context.abort always raises")


def _to_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")


@contextmanager
def open_stream(streams: StreamLimit, owner: str) -> Iterator[None]:
    """Count one open stream of the owner. Raises RateLimited if it has too many, over HTTP and gRPC together."""
    streams.acquire(owner)
    try:
        yield
    finally:
        streams.release(owner)


@contextmanager
def end_early(call: Call, closing: asyncio.Event) -> Iterator[None]:
    """Cancel the code in this block when `closing` is set, or the key of the caller has ended or changed.

    Raises ServiceUnavailable or Unauthorized then.
    """
    task = asyncio.current_task()
    assert task is not None
    watcher = asyncio.create_task(_cancel_early(task, call, closing))
    try:
        yield
    except asyncio.CancelledError:
        # The client may have cancelled as well, or alone: then the cancellation must continue.
        if not watcher.done() or task.uncancel():
            raise
        call.require_unchanged()
        raise ServiceUnavailable(STOPPING_MESSAGE) from None
    finally:
        watcher.cancel()


async def _cancel_early(task: asyncio.Task[object], call: Call, closing: asyncio.Event) -> None:
    while not closing.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(closing.wait(), CALLER_CHECK_SECONDS)
        if not call.is_unchanged:
            break
    task.cancel()


def to_stentor_error(error: Exception, method: str, request_id: str) -> StentorError:
    """Return the error as a StentorError. An unexpected one is logged, and its text is not given to the caller."""
    if isinstance(error, StentorError):
        return error
    if isinstance(error, RequestValidationError):
        return validation_error(error.errors())
    log.error("grpc: call failed unexpectedly method=%s request_id=%s", method, request_id, exc_info=error)
    return StentorError(UNEXPECTED_MESSAGE)


def status_code(error: StentorError) -> StatusCode:
    code: StatusCode = StatusCode[status_of(error)]
    return code


def status_message(error: StentorError) -> str:
    """Return the message of the status, truncated to MAX_MESSAGE_BYTES."""
    # A cut may fall into a character, whose rest is dropped.
    return error.message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")


def error_metadata(error: StentorError, request_id: str) -> MetadataPairs:
    """Return the trailing metadata of an error, without the request id."""
    status = status_pb2.Status(code=status_code(error).value[0], message=status_message(error))
    for detail in _details(error, request_id):
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    retry_after = (("retry-after", str(error.retry_after)),) if _is_retryable(error) else ()
    return ("stentor-code", error.code), *retry_after, ("grpc-status-details-bin", status.SerializeToString())


def _is_retryable(error: StentorError) -> bool:
    return error.status in (429, 503) and error.is_repeatable


def _details(error: StentorError, request_id: str) -> Iterator[Message]:
    details = dict(error.details or {})
    fields = details.pop("fields", None)
    yield error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=_info_metadata(details))
    yield error_details_pb2.RequestInfo(request_id=request_id)
    if _is_retryable(error):
        yield error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=error.retry_after))
    if isinstance(fields, dict):
        yield _bad_request(fields)


def _info_metadata(details: JsonObject) -> dict[str, str]:
    """Return the first details that fit into MAX_DETAILS_BYTES; values that are not text as JSON."""
    metadata: dict[str, str] = {}
    bytes_left = MAX_DETAILS_BYTES
    for name, value in details.items():
        text = value if isinstance(value, str) else jsontext.dump(value)
        bytes_left -= len(name) + len(text.encode())
        if bytes_left < 0:
            break
        metadata[name] = text
    return metadata


def _bad_request(fields: JsonObject) -> Message:
    """Return the first field violations that fit into MAX_FIELDS_BYTES."""
    violations: list[error_details_pb2.BadRequest.FieldViolation] = []
    bytes_left = MAX_FIELDS_BYTES
    for field, reason in fields.items():
        bytes_left -= len(f"{field}{reason}".encode())
        if bytes_left < 0:
            break
        violations.append(error_details_pb2.BadRequest.FieldViolation(field=field, description=str(reason)))
    message: Message = error_details_pb2.BadRequest(field_violations=violations)
    return message
