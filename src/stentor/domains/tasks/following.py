"""How those above follow a task: the port that the task's stream fills, whoever makes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol


class Step(Protocol):
    """One step of a task's stream. `id` is `<event>` or, of a token, `<event>:<attempt>:<n>`."""

    @property
    def kind(self) -> str: ...
    @property
    def data(self) -> dict[str, Any]: ...
    @property
    def id(self) -> str | None: ...


TaskStream = Callable[[str, str, str | None], AsyncIterator[Step]]
"""Tenant, task and Last-Event-ID to the steps of the task, the last of them terminal."""
