"""Every error has a status of gRPC, and what it tells fits into the metadata of an answer."""

from __future__ import annotations

import re

import grpc
from google.rpc import error_details_pb2, status_pb2

from stentor.core.errors import InvalidRequest, RateLimited, StentorError
from stentor.domains.atp.model import FieldError, MessageInvalid
from stentor.surfaces.grpc import calls
from stentor.surfaces.grpc.codes import BY_CODE, STATUSES
from tests.requirements import requirement
from tests.test_generated_docs import FOLDER

CODE = re.compile(r"^\| `(\w+)` \| (\d+) \| (\w+) \| (\w+)", re.MULTILINE)
MOST_METADATA = 8_192
"""What clients take by default."""
BY_HTTP = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"} | {
    429: "RESOURCE_EXHAUSTED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Where HTTP and gRPC mean the same."""


def rows() -> list[tuple[str, str, str, str]]:
    """Code, status of HTTP, class and status of gRPC of every error that the service can raise."""
    return CODE.findall((FOLDER / "errors.md").read_text())


@requirement("scale.grpc-errors")
def test_every_error_has_a_status_of_its_own_choice() -> None:
    codes = {code for code, *_ in rows()}
    assert codes == BY_CODE.keys()
    assert len(codes) > 40
    assert sum(len(group) for group in STATUSES.values()) == len(BY_CODE)
    assert set(STATUSES) <= {status.name for status in grpc.StatusCode}


@requirement("scale.grpc-errors")
def test_where_http_and_grpc_mean_the_same_they_say_the_same() -> None:
    found = {(code, status) for code, http, _, status in rows() if BY_HTTP.get(int(http), status) != status}
    assert found == set()
    assert {status for _, _, _, status in rows()} == set(STATUSES)


def size(error: StentorError) -> int:
    """Of all that the answer carries, the message encoded as HTTP/2 wants it."""
    pairs = calls.error_metadata(error, "r" * 128)
    message = sum(3 if byte > 126 or byte == 37 else 1 for byte in calls.status_message(error).encode())
    return message + sum(32 + len(name) + 4 * len(value) // 3 for name, value in pairs)


def test_what_an_error_tells_never_grows_beyond_what_clients_take() -> None:
    fields = {f"metadata.tags.{at}.é": "é" * 300 for at in range(64)}
    many = InvalidRequest("é" * 100_000, {"fields": fields, "reason": {"a": ["é"] * 10_000}, "task_id": "é" * 255})
    flaws = MessageInvalid([FieldError(f"header.{at}" * 50, "is not a field of a message") for at in range(1_000)])
    for error in (many, flaws, RateLimited("x" * 9_000, {"a": "b"})):
        assert size(error) < MOST_METADATA


def test_programs_find_all_of_it_in_the_details() -> None:
    error = RateLimited("Wait.", {"task_id": "t-1", "scores": [1, 2]})
    error.retry_after = 7
    pairs = dict(calls.error_metadata(error, "r-1"))
    details = pairs["grpc-status-details-bin"]
    assert isinstance(details, bytes)
    status = status_pb2.Status.FromString(details)
    info, request, retry = (
        error_details_pb2.ErrorInfo(),
        error_details_pb2.RequestInfo(),
        error_details_pb2.RetryInfo(),
    )
    assert [status.details[at].Unpack(one) for at, one in enumerate((info, request, retry))] == [True] * 3
    assert (info.reason, info.domain) == ("RATE_LIMITED", "stentor")
    assert dict(info.metadata) == {"task_id": "t-1", "scores": "[1,2]"}
    assert (request.request_id, retry.retry_delay.seconds, pairs["retry-after"]) == ("r-1", 7, "7")
    error.is_repeatable = False
    assert "retry-after" not in dict(calls.error_metadata(error, "r-1"))
