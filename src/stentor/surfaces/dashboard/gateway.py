"""The dashboard's way to the gateway: operations with the key of whoever is signed in, and tasks of its own.

Here within the gateway's own process; `gateway_http` is the way to a gateway in another process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

import msgspec

from stentor.auth.principal import Principal
from stentor.core.errors import FeatureNotImplemented, StentorError
from stentor.domains.activity.service import ActivityService
from stentor.domains.tasks.submission import SubmissionService
from stentor.surfaces.dashboard.instruction import PlannedTask
from stentor.web.operations import Operation, invoke

UNKNOWN_KEY_MESSAGE = "The key is not one that this service knows."


class TaskStreamEvent(Protocol):
    """One step of a task's stream; `id` is what the stream goes on from."""

    @property
    def kind(self) -> str: ...
    @property
    def data(self) -> dict[str, Any]: ...
    @property
    def id(self) -> str | None: ...


class GatewayClient(Protocol):
    """Calls of operations by their names, with the permissions of a key."""

    async def call(self, key: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        """The output as JSON values; `body` is the argument that holds the request's body.

        Raises GatewayError for a refusal, ServiceUnavailable when no gateway answers.
        """
        ...

    def stream_task(self, key: str, task_id: str, after: str | None = None) -> AsyncIterator[TaskStreamEvent]:
        """What happens to a task after a step, up to its end. Raises GatewayError before the first step."""
        ...

    async def is_key_valid(self, key: str, tenant: str) -> bool:
        """Whether the gateway takes this key for this tenant; true as well when it cannot be asked."""
        ...

    async def close(self) -> None: ...


class GatewayError(Exception):
    """The gateway refused a call of a page; `code` and `message` are the gateway's own, `data` is the whole body."""

    def __init__(self, status: int, code: str, message: str, details: Any = None, data: Any = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.details, self.data = status, code, message, details, data


def quote_segment(text: str) -> str:
    """One segment of a path, whatever characters it has."""
    return quote(text, safe="")


class AcceptedTask(msgspec.Struct, frozen=True):
    """A task that the gateway took; without a provenance id where the gateway is older than that."""

    task_id: str
    provenance_id: str | None


class TaskGateway(Protocol):
    async def submit(self, planned: PlannedTask, credential: str) -> AcceptedTask:
        """Returns when the task is stored. Raises the RoutingDenied after the task was stored as failed (its id in the
        details), InvalidRequest, Forbidden, ServiceUnavailable.
        """
        ...

    def stream_task(self, task_id: str, after: str | None, credential: str) -> AsyncIterator[TaskStreamEvent]:
        """What happens to the task after a step, up to its end, or until the stream breaks off."""
        ...

    async def close(self) -> None: ...


class LocalTaskGateway:
    """In the process of the gateway. The dashboard's own key opens it, so the work is the dashboard's own."""

    def __init__(self, submission: SubmissionService, activity: ActivityService, principal: Principal) -> None:
        self._submission = submission
        self._activity = activity
        self._principal = principal

    async def submit(self, planned: PlannedTask, credential: str) -> AcceptedTask:
        result = await self._submission.submit(self._principal, planned.draft, header=planned.header)
        return AcceptedTask(result.task_id, result.provenance_id)

    def stream_task(self, task_id: str, after: str | None, credential: str) -> AsyncIterator[TaskStreamEvent]:
        return self._activity.stream(self._principal.tenant, task_id, after)

    async def close(self) -> None:
        """Nothing to close: the kernel belongs to the gateway."""


class InProcessGatewayClient:
    """In the process of the gateway: past the network and the rate limit, but not past the permissions.

    `find_principal` returns who holds a key, None when it is not known or not any more.
    """

    def __init__(
        self,
        operations: Mapping[str, Operation],
        activity: ActivityService,
        find_principal: Callable[[str], Principal | None],
    ) -> None:
        self._operations = operations
        self._activity = activity
        self._find_principal = find_principal

    async def call(self, key: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        caller = self._authenticate(key)
        try:
            if operation not in self._operations:
                raise FeatureNotImplemented(f"The operation {operation} is switched off in this service.")
            return await invoke(self._operations[operation], caller, arguments)
        except StentorError as error:
            raise GatewayError(error.status, error.code, error.message, error.details) from error

    async def stream_task(self, key: str, task_id: str, after: str | None = None) -> AsyncIterator[TaskStreamEvent]:
        caller = self._authenticate(key)
        try:
            await self._activity.require_visible(caller, task_id)
        except StentorError as error:
            raise GatewayError(error.status, error.code, error.message, error.details) from error
        async for step in self._activity.stream(caller.tenant, task_id, after):
            yield step

    async def is_key_valid(self, key: str, tenant: str) -> bool:
        principal = self._find_principal(key)
        return principal is not None and principal.tenant == tenant

    async def close(self) -> None:
        """Nothing to close: the kernel belongs to the gateway."""

    def _authenticate(self, key: str) -> Principal:
        principal = self._find_principal(key)
        if principal is None:
            raise GatewayError(401, "UNAUTHORIZED", UNKNOWN_KEY_MESSAGE)
        return principal
