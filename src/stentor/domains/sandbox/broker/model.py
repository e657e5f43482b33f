"""A tool, a run, a call. A tool says what access a call means; it acts only after that access was granted."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from stentor.core.db import Tx
from stentor.core.errors import InvalidRequest, StentorError
from stentor.domains.sandbox.model import Access


class ToolRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the socket. `operation` may be left out where the tool has only one."""

    tool: str
    id: int | str | None = None
    operation: str | None = None
    arguments: dict[str, Any] = {}


class ToolFailed(StentorError):
    """The access was granted, and the tool could not do it."""

    code, status = "TOOL_FAILED", 502


class SandboxRun:
    """One attempt of an agent at a task that the key `asked_by` submitted. `parent` is the event that its calls hang
    under; `guard` raises in the transaction of a call when the attempt is over.
    """

    def __init__(
        self, tenant: str, agent_id: str, agent_name: str, task_id: str, asked_by: str, parent: str, work: Path,
        guard: Callable[[Tx], None],
    ) -> None:  # fmt: skip
        self.tenant, self.agent_id, self.agent_name = tenant, agent_id, agent_name
        self.task_id, self.submitted_by, self.parent_event_id = task_id, asked_by, parent
        self.work_folder = work
        self.guard = guard
        self.call_count = 0
        self.revoked = asyncio.Event()
        """Set when the agent is quarantined or suspended: the run is to end."""


class Tool(ABC):
    """`operations` are what can be done with it, the usual one first; `seconds` is how long a call may take."""

    name: str
    description: str
    operations: tuple[str, ...]
    timeout_seconds: float = 30.0

    @property
    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""

    @abstractmethod
    def to_access(self, call: ToolRequest) -> Access:
        """What the call means. Raises InvalidRequest."""

    def complete_access(self, access: Access) -> Access:
        """The access as it is judged, for one that was described instead of called. Twice changes nothing."""
        return access

    @abstractmethod
    async def execute(self, run: SandboxRun, call: ToolRequest) -> Any:
        """Do it, once it was granted. Raises StentorError."""


class TypedTool(Tool):
    """A tool whose arguments are a struct. Subclasses name it as `asked`."""

    arguments_type: type[msgspec.Struct]

    @property
    def parameters(self) -> dict[str, Any]:
        (_,), defined = msgspec.json.schema_components([self.arguments_type], ref_template="{name}")
        schema = defined[self.arguments_type.__name__]
        return {"type": "object", **{k: v for k, v in schema.items() if k in ("properties", "required")}}

    def parse_arguments(self, call: ToolRequest) -> Any:
        return convert_struct(call.arguments, self.arguments_type, self.name)

    def resolve_operation(self, call: ToolRequest) -> str:
        """Raises InvalidRequest."""
        operation = call.operation or self.operations[0]
        if operation not in self.operations:
            raise InvalidRequest(f"The tool {self.name!r} has no operation {operation!r}; it has {self.operations}.")
        return operation


def convert_struct(value: Any, shape: Any, name: str) -> Any:
    """Raises InvalidRequest."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The arguments of {name!r} are wrong: {error}.") from None
