"""Responses of the service as commands use them: the JSON that `--json` prints, and the fields that a command reads.

The classes declare only those fields, so that a newer service may add others. A class that only one command needs is
beside that command.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Generic, TypeVar

import msgspec

from stentor.cli.output import CommandFailed
from stentor.core.jsontext import JsonObject

T = TypeVar("T")


class Response(Generic[T]):
    """A response: `document` is the JSON as received, `value` its fields as the class `kind`."""

    def __init__(self, document: Any, kind: type[T]) -> None:
        self.document = document
        self._kind = kind

    @cached_property
    def value(self) -> T:
        """Decoded on first use: with --json the document is printed whatever its fields are. Raises CommandFailed."""
        return read_fields(self.document, self._kind)


def read_fields(document: Any, kind: type[T]) -> T:
    """Return the fields of a decoded JSON document. Raises CommandFailed if one is missing or has another type."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise CommandFailed(
            f"The service sent an unexpected response: {error}. Does it have the same version as this program?"
        ) from None


class RuntimeRow(msgspec.Struct, frozen=True):
    """How an agent runs: `worker`, `builtin` or `http`."""

    kind: str


class AgentRecord(msgspec.Struct, frozen=True):
    """An agent in full."""

    agent_id: str
    name: str
    status: str
    runtime: RuntimeRow


class StoredTask(msgspec.Struct, frozen=True):
    """A task in full; `error` is an object with `code` and `message` if it failed."""

    task_id: str
    status: str
    assigned_agent: str | None = None
    result: Any = None
    error: Any = None
    notice: str | None = None
    notice_code: str | None = None


class RunEvent(msgspec.Struct, frozen=True):
    """An event of the run log; `number` is its place in the tree, None before it has one."""

    provenance_id: str
    parent_provenance_id: str | None
    event_type: str
    message: str
    timestamp: str
    metadata: JsonObject
    number: int | None = None


class TaskActivity(msgspec.Struct, frozen=True):
    """A task with its routing decision and its events, oldest first."""

    task_id: str
    status: str
    agent_name: str | None
    task: JsonObject | None
    routing: JsonObject | None
    events: list[RunEvent]
