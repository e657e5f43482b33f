"""Errors as clients of gRPC read them: a status, `stentor-code` beside it, and google.rpc.Status with the details."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from fastapi.exceptions import RequestValidationError
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from stentor.core import jsontext
from stentor.core.errors import StentorError
from stentor.surfaces.grpc.codes import status_of
from stentor.web.errors import UNEXPECTED_MESSAGE, validation_error

DOMAIN = "stentor"
"""Whose codes those in ErrorInfo are."""
MOST_MESSAGE, MOST_DETAILS, MOST_FIELDS = 400, 1_000, 1_500
"""Bytes: clients refuse all metadata of an answer when it is above 8 KiB, and a message is encoded threefold."""
Pairs = tuple[tuple[str, str | bytes], ...]
log = logging.getLogger(__name__)


def known(error: Exception, method: str, request_id: str) -> StentorError:
    """The error as one of ours. What was not foreseen is logged, and told in one sentence that gives nothing away."""
    if isinstance(error, StentorError):
        return error
    if isinstance(error, RequestValidationError):
        return validation_error(error.errors())
    log.error("call %s failed (request_id %s)", method, request_id, exc_info=error)
    return StentorError(UNEXPECTED_MESSAGE)


def code_of(error: StentorError) -> StatusCode:
    found: StatusCode = StatusCode[status_of(error)]
    return found


def message_of(error: StentorError) -> str:
    return error.message.encode()[:MOST_MESSAGE].decode(errors="ignore")


def metadata_of(error: StentorError, request_id: str) -> Pairs:
    """What stands in the trailing metadata besides the request id."""
    status = status_pb2.Status(code=code_of(error).value[0], message=message_of(error))
    for detail in _details(error, request_id):
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    wait = (("retry-after", str(error.retry_after)),) if _passes(error) else ()
    return ("stentor-code", error.code), *wait, ("grpc-status-details-bin", status.SerializeToString())


def _passes(error: StentorError) -> bool:
    """Whether it is worth trying again."""
    return error.status in (429, 503)


def _details(error: StentorError, request_id: str) -> Iterator[Message]:
    details = dict(error.details or {})
    fields = details.pop("fields", None)
    yield error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=_texts(details))
    yield error_details_pb2.RequestInfo(request_id=request_id)
    if _passes(error):
        yield error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=error.retry_after))
    if isinstance(fields, dict):
        yield _violations(fields)


def _texts(details: dict[str, Any]) -> dict[str, str]:
    """What is no text as JSON; those that there is room for."""
    found, room = {}, MOST_DETAILS
    for name, value in details.items():
        text = value if isinstance(value, str) else jsontext.dump(value)
        room -= len(name) + len(text.encode())
        if room < 0:
            break
        found[name] = text
    return found


def _violations(fields: dict[str, Any]) -> Message:
    """Those that there is room for."""
    found: list[Message] = []
    room = MOST_FIELDS
    for field, reason in fields.items():
        room -= len(f"{field}{reason}".encode())
        if room < 0:
            break
        found.append(error_details_pb2.BadRequest.FieldViolation(field=field, description=str(reason)))
    made: Message = error_details_pb2.BadRequest(field_violations=found)
    return made
