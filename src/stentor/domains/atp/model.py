"""A message and the values that its header may have. Source: core contract, "ATP message"."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from stentor.core.errors import InvalidRequest

Mode = Literal["direct", "batch", "stream", "async"]
Priority = Literal["critical", "high", "normal", "low"]
Zone = Literal["kernel", "registry", "memory", "sandbox", "governance"]
ActionType = Literal[
    "query",
    "search",
    "list",
    "get_status",
    "create",
    "update",
    "delete",
    "upsert",
    "execute",
    "schedule",
    "cancel",
    "retry",
    "register",
    "revoke",
    "approve",
    "reject",
    "propose_update",
    "rollback",
    "override",
]
MODES: tuple[str, ...] = get_args(Mode)
PRIORITIES: tuple[str, ...] = get_args(Priority)
"""The most urgent first: a priority's number is its place."""
ZONES: tuple[str, ...] = get_args(Zone)
ACTION_TYPES: tuple[str, ...] = get_args(ActionType)
PRIORITY_RANK = {name: number for number, name in enumerate(PRIORITIES)}
MAX_CONTEXT_LENGTH, MAX_SPECIAL_NOTES_LENGTH, MAX_SENDER_LENGTH = 64, 256, 255
"""Characters."""


class AtpHeader(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The envelope. Its JSON names are those of the contract."""

    mode: Mode
    context: str
    priority: Priority
    action_type: ActionType
    target_zone: Zone
    special_notes: str | None = None

    @property
    def zone_action(self) -> tuple[str, str]:
        """Zone and action."""
        return self.target_zone, self.action_type


class AtpMessage(msgspec.Struct, frozen=True):
    """`sender_id` stands in the JSON form only; on the wire the connection tells who sends."""

    header: AtpHeader
    content: str
    sender_id: str | None = None


class FieldError(msgspec.Struct, frozen=True):
    """What is wrong with one field, and what it must be."""

    field: str
    message: str


class MessageInvalid(InvalidRequest):
    """The message is not a valid ATP message; `details.fields` names all that is wrong with it."""

    def __init__(self, flaws: list[FieldError]) -> None:
        first = flaws[0]
        fields = {flaw.field: flaw.message for flaw in flaws}
        super().__init__(f"{first.field}: {first.message}", {"fields": fields})
        self.field_errors = flaws

    def with_prefix(self, name: str) -> MessageInvalid:
        """The same of a message that stands in the field `name` of something."""
        return MessageInvalid([FieldError(f"{name}.{flaw.field}", flaw.message) for flaw in self.field_errors])


def header_to_json(header: AtpHeader) -> dict[str, Any]:
    """The envelope as answers carry it."""
    return dict(msgspec.to_builtins(header))
