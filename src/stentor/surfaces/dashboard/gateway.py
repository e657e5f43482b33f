"""Clients of the gateway: `GatewayClient` for the pages (any operation, with the user's key), `TaskGateway` for
streamed task execution.

Holds the protocols and the clients for the gateway's own process; `gateway_http` reaches another process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, Self
from urllib.parse import quote

import msgspec

from stentor.auth.api_keys import KeyRing
from stentor.auth.principal import Principal
from stentor.core.errors import FeatureNotImplemented, StentorError
from stentor.domains.activity.service import ActivityService
from stentor.domains.tasks.model import TaskStreamStep
from stentor.domains.tasks.submission.service import SubmissionService
from stentor.surfaces.dashboard.instruction import PlannedTask
from stentor.web.operations import Operation, invoke

UNKNOWN_KEY_MESSAGE = "Unknown API key."


class GatewayClient(Protocol):
    """Calls operations by name, with the permissions of a key."""

    async def call(self, key: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        """Return the operation's output as JSON values. The argument `body` is the request's body.

        `key` is empty for public operations. Raises GatewayError when the gateway rejects the call, ServiceUnavailable
        when no gateway responds.
        """
        ...

    def stream_task(self, key: str, task_id: str, after: str | None = None) -> AsyncIterator[TaskStreamStep]:
        """Yield the events of a task after the id `after`, up to its end. Raises GatewayError before the first one."""
        ...

    async def close(self) -> None: ...


class GatewayError(Exception):
    """A call that the gateway rejected; `code` and `message` are the gateway's, `data` is the complete body."""

    def __init__(self, status: int, code: str, message: str, details: Any = None, data: Any = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.details, self.data = status, code, message, details, data

    def require_status(self, *statuses: int) -> Self:
        """Return an error with one of these statuses, which the page displays; raise any other."""
        if self.status not in statuses:
            raise self
        return self


def quote_segment(text: str) -> str:
    """Percent-encode one segment of a path, slashes included."""
    return quote(text, safe="")


class AcceptedTask(msgspec.Struct, frozen=True):
    """A task that the gateway accepted."""

    task_id: str
    provenance_id: str | None


class TaskGateway(Protocol):
    """Submits planned tasks and streams their events."""

    async def submit(self, planned: PlannedTask, credential: str) -> AcceptedTask:
        """Submit a task and return when it is stored.

        Raises RoutingDenied when the task was stored as failed (its id is in the details), InvalidRequest, Forbidden,
        ServiceUnavailable.
        """
        ...

    def stream_task(self, task_id: str, after: str | None, credential: str) -> AsyncIterator[TaskStreamStep]:
        """Yield the events of a task after the id `after`, up to its end or until the connection is lost."""
        ...

    async def close(self) -> None: ...


class LocalTaskGateway:
    """The TaskGateway within the gateway's process. Tasks are submitted as the dashboard's principal."""

    def __init__(self, submission: SubmissionService, activity: ActivityService, principal: Principal) -> None:
        self._submission = submission
        self._activity = activity
        self._principal = principal

    async def submit(self, planned: PlannedTask, credential: str) -> AcceptedTask:
        result = await self._submission.submit(self._principal, planned.draft, header=planned.header)
        return AcceptedTask(result.task_id, result.provenance_id)

    def stream_task(self, task_id: str, after: str | None, credential: str) -> AsyncIterator[TaskStreamStep]:
        return self._activity.stream(self._principal.tenant, task_id, after)

    async def close(self) -> None:
        """Do nothing: the gateway owns the kernel."""


class InProcessGatewayClient:
    """The GatewayClient within the gateway's process: no network, no rate limit, but all permission checks."""

    def __init__(self, operations: Mapping[str, Operation], activity: ActivityService, keys: KeyRing) -> None:
        self._operations = operations
        self._activity = activity
        self._keys = keys

    async def call(self, key: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        # Looked up for every call: a key that was revoked a moment ago must not continue working in an open page.
        caller = self._authenticate(key) if key else None
        try:
            if operation not in self._operations:
                raise FeatureNotImplemented(f"The operation {operation} is disabled in this service.")
            return await invoke(self._operations[operation], caller, arguments)
        except StentorError as error:
            raise GatewayError(error.status, error.code, error.message, error.details) from error

    async def stream_task(self, key: str, task_id: str, after: str | None = None) -> AsyncIterator[TaskStreamStep]:
        caller = self._authenticate(key)
        try:
            # Checked here, because once the stream has begun only an event could report it.
            await self._activity.require_visible(caller, task_id)
        except StentorError as error:
            raise GatewayError(error.status, error.code, error.message, error.details) from error
        async for event in self._activity.follow(caller, task_id, after):
            yield event

    async def close(self) -> None:
        """Do nothing: the gateway owns the kernel."""

    def _authenticate(self, key: str) -> Principal:
        principal = self._keys.development_admin or self._keys.find(key)
        if principal is None:
            raise GatewayError(401, "UNAUTHORIZED", UNKNOWN_KEY_MESSAGE)
        return principal
