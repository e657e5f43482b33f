"""The errors of a vault, and the base of all errors of Stentor's packages.

Each class has a stable code and the HTTP status that fits it; each surface renders them in its own format.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self


class StentorError(Exception):
    """Base of all errors with a stable code. `details` is safe to show to the caller."""

    code: ClassVar[str] = "INTERNAL_ERROR"
    status: ClassVar[int] = 500
    retry_after: int = 1
    """Seconds for the Retry-After header of 429 and 503."""
    is_repeatable: bool = True
    """False if the request was carried out in part: if it is sent again, its work is done twice."""

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidRequest(StentorError):
    code, status = "INVALID_REQUEST", 400

    @classmethod
    def of_field(cls, field: str, reason: str) -> Self:
        """Return the error of one field; `reason` begins in lower case and has no full stop."""
        return cls(f"{field}: {reason}.", {"fields": {field: reason}})


class NotFound(StentorError):
    code, status = "NOT_FOUND", 404


class Conflict(StentorError):
    code, status = "CONFLICT", 409


class PreconditionFailed(StentorError):
    """The condition of If-Match or If-None-Match is not met by the current state."""

    code, status = "PRECONDITION_FAILED", 412


class ServiceUnavailable(StentorError):
    code, status = "SERVICE_UNAVAILABLE", 503


class Timeout(StentorError):
    code, status = "TIMEOUT", 504
