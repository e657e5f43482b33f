"""The way to the gateway, which alone may take work; here within its own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from stentor.auth.principal import Principal
from stentor.domains.activity.service import Activity
from stentor.domains.tasks.submission import Submission
from stentor.surfaces.dashboard.instruction import Planned


class Step(Protocol):
    """One step of a task's stream; `id` is what the stream goes on from."""

    @property
    def kind(self) -> str: ...
    @property
    def data(self) -> dict[str, Any]: ...
    @property
    def id(self) -> str | None: ...


class Accepted(msgspec.Struct, frozen=True):
    """A task that the gateway took; without a provenance id where the gateway is older than that."""

    task_id: str
    provenance_id: str | None


class Gateway(Protocol):
    async def submit(self, planned: Planned, credential: str) -> Accepted:
        """Returns when the task is stored. Raises the RoutingDenied after the task was stored as failed (its id in the
        details),
        InvalidRequest, Forbidden, ServiceUnavailable.
        """
        ...

    def steps(self, task_id: str, after: str | None, credential: str) -> AsyncIterator[Step]:
        """What happens to the task after a step, up to its end, or until the stream breaks off."""
        ...

    async def close(self) -> None: ...


class Local:
    """In the process of the gateway. The dashboard's own key opens it, so the work is the dashboard's own."""

    def __init__(self, submission: Submission, activity: Activity, principal: Principal) -> None:
        self._submission = submission
        self._activity = activity
        self._principal = principal

    async def submit(self, planned: Planned, credential: str) -> Accepted:
        done = await self._submission.submit(self._principal, planned.draft, header=planned.header)
        return Accepted(done.task_id, done.provenance_id)

    def steps(self, task_id: str, after: str | None, credential: str) -> AsyncIterator[Step]:
        return self._activity.stream(self._principal.tenant, task_id, after)

    async def close(self) -> None:
        """The kernel is another's to stop."""
