"""The types of the tool broker: tools, runs and calls.

A tool maps a call to the access that it needs; the dispatcher in `service` executes it only after that was granted.
"""

from __future__ import annotations

import asyncio
import base64
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from stentor.core.db import Tx
from stentor.core.errors import InvalidRequest, StentorError
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.costs import TaskBudget
from stentor.domains.sandbox.model import Access, normalize_path


class ToolRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request line of the socket. `operation` may be omitted for the first operation of the tool."""

    tool: str
    id: int | str | None = None
    operation: str | None = None
    arguments: JsonObject = {}


class ToolFailed(StentorError):
    """The access was granted, but the tool failed."""

    code, status = "TOOL_FAILED", 502


class ToolInterrupted(ToolFailed):
    """The tool failed, and may have had its effect all the same."""


class SandboxRun:
    """One attempt of an agent at a task that the key `submitted_by` submitted.

    `parent_event_id` is the parent of the events of its calls; `guard` raises in the transaction of a call when the
    attempt is over; `budgets` are those of the task. `work_folder` is None for an agent that is not a program.
    """

    def __init__(
        self,
        tenant: str,
        agent_id: str,
        agent_name: str,
        task_id: str,
        submitted_by: str,
        parent_event_id: str,
        work_folder: Path | None,
        guard: Callable[[Tx], None],
        budgets: tuple[TaskBudget, ...] = (),
    ) -> None:
        self.tenant, self.agent_id, self.agent_name = tenant, agent_id, agent_name
        self.task_id, self.submitted_by, self.parent_event_id = task_id, submitted_by, parent_event_id
        self.work_folder = work_folder
        self.guard = guard
        self.budgets = budgets
        self.call_count = 0
        self.decoding = asyncio.Lock()
        """Held while a long line is decoded."""
        self.revoked = asyncio.Event()
        """Set when the agent is quarantined or suspended: the run must end."""


PATH_ARGUMENTS = ("path", "folder")
"""Names of the arguments that are paths."""


class Tool(ABC):
    """A tool with its operations, the default one first, and the time limit of a call."""

    name: str
    description: str
    operations: tuple[str, ...]
    timeout_seconds: float = 30.0
    needs_work_folder = False

    @property
    @abstractmethod
    def parameters(self) -> JsonObject:
        """The JSON schema of its arguments."""

    @abstractmethod
    def to_access(self, call: ToolRequest) -> Access:
        """Return the access that the call needs. Raises InvalidRequest."""

    def complete_access(self, access: Access) -> Access:
        """Add what the tool needs to an access that a client described instead of calling the tool. Idempotent."""
        return access

    def is_repeatable(self, call: ToolRequest) -> bool:
        """Return whether a call may be made again when nobody knows whether it was made."""
        return True

    def with_key(self, call: ToolRequest, key: str) -> ToolRequest:
        """Return the call with an idempotency key, if the tool has a place for one."""
        return call

    @abstractmethod
    async def execute(self, run: SandboxRun, call: ToolRequest) -> Any:
        """Execute a granted call. Raises StentorError."""


class TypedTool(Tool):
    """A tool whose arguments are a struct."""

    arguments_type: type[msgspec.Struct]

    @property
    def parameters(self) -> JsonObject:
        (_,), defined = msgspec.json.schema_components([self.arguments_type], ref_template="{name}")
        schema = defined[self.arguments_type.__name__]
        return {"type": "object", **{k: v for k, v in schema.items() if k in ("properties", "required")}}

    def parse_arguments(self, call: ToolRequest) -> Any:
        if self.operations == ("write",) and str(call.arguments.get("path", "")).endswith("/"):
            raise InvalidRequest("path: names a folder; a file's ends without a slash. Folders are made when needed.")
        # The path that is used must be the one that `SandboxService.authorize` checks.
        arguments = {
            name: normalize_path(value) if name in PATH_ARGUMENTS and isinstance(value, str) else value
            for name, value in call.arguments.items()
        }
        return convert_struct(arguments, self.arguments_type, self.name)

    def resolve_operation(self, call: ToolRequest) -> str:
        """Return the operation of the call. Raises InvalidRequest."""
        operation = call.operation or self.operations[0]
        if operation not in self.operations:
            raise InvalidRequest(f"The tool {self.name!r} has no operation {operation!r}; it has {self.operations}.")
        return operation


def convert_struct(value: Any, shape: Any, name: str) -> Any:
    """Convert JSON to a struct type; `name` is for the message. Raises InvalidRequest."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The arguments of {name!r} are invalid: {error}.") from None


def encode_content(data: bytes) -> tuple[str, str]:
    """Return bytes as text for a response, and its encoding: "utf-8", or "base64" for bytes that are not UTF-8."""
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"
