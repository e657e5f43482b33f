"""Errors as gRPC clients receive them: a status, `stentor-code` in the metadata, and google.rpc.Status with details."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from fastapi.exceptions import RequestValidationError
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from stentor.core import jsontext
from stentor.core.errors import StentorError
from stentor.core.jsontext import JsonObject
from stentor.surfaces.grpc.codes import status_of
from stentor.web.errors import UNEXPECTED_MESSAGE, validation_error

DOMAIN = "stentor"
"""The domain of the codes in ErrorInfo."""
# In bytes. Clients reject metadata above 8 KiB in total, and percent-encoding can triple the message.
MAX_MESSAGE_BYTES, MAX_DETAILS_BYTES, MAX_FIELDS_BYTES = 400, 1_000, 1_500
MetadataPairs = tuple[tuple[str, str | bytes], ...]
log = logging.getLogger(__name__)


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
