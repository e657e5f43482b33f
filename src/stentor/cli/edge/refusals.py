"""The answers to requests that never reach an application, in the error envelope of the gateway."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

from stentor.core import ids, jsontext


class Refusal(NamedTuple):
    status: int
    code: str
    message: str


INVALID = Refusal(400, "INVALID_REQUEST", "The request is not valid HTTP.")
LATE = Refusal(408, "REQUEST_TIMEOUT", "The request did not arrive in time.")
LARGE = Refusal(431, "REQUEST_HEAD_TOO_LARGE", "The head of a request may have 64 kB and 100 fields.")
BUSY = Refusal(503, "SERVICE_UNAVAILABLE", "There are too many connections. Close some, or try again later.")


def written(refusal: Refusal) -> bytes:
    """The whole answer, after which the connection ends."""
    request_id = ids.new_id()
    error = {"code": refusal.code, "message": refusal.message, "request_id": request_id}
    body = jsontext.encode({"error": error})
    retry = "Retry-After: 1\r\n" if refusal.status == 503 else ""
    head = (
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"X-Request-Id: {request_id}\r\n{retry}Connection: close\r\n\r\n"
    )
    return head.encode() + body
