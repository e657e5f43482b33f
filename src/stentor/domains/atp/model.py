"""An ATP message, the values of its header fields, and its validation error.

Source: core contract, "ATP message". Parsing is in `text_format` and `json_format`.
"""

from __future__ import annotations

from typing import Literal, get_args

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
"""The most urgent first. The position is stored as the priority's number, so the order must not change."""
ZONES: tuple[str, ...] = get_args(Zone)
ACTION_TYPES: tuple[str, ...] = get_args(ActionType)
PRIORITY_RANK = {name: number for number, name in enumerate(PRIORITIES)}
MAX_CONTEXT_LENGTH, MAX_SPECIAL_NOTES_LENGTH, MAX_SENDER_LENGTH = 64, 256, 255
"""Characters."""


class AtpHeader(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The header of a message. Its JSON names are given by the contract."""

    mode: Mode
    context: str
    priority: Priority
    action_type: ActionType
    target_zone: Zone
    special_notes: str | None = None

    @property
    def zone_action(self) -> tuple[str, str]:
        return self.target_zone, self.action_type


class AtpMessage(msgspec.Struct, frozen=True):
    """A message. `sender_id` exists in the JSON format only; in the text format the caller is the sender."""

    header: AtpHeader
    content: str
    sender_id: str | None = None


class FieldError(msgspec.Struct, frozen=True):
    """A validation error of one field."""

    field: str
    message: str


class MessageInvalid(InvalidRequest):
    """The message is not a valid ATP message; `details.fields` maps each invalid field to its error."""

    def __init__(self, errors: list[FieldError]) -> None:
        first = errors[0]
        fields = {error.field: error.message for error in errors}
        super().__init__(f"{first.field}: {first.message}", {"fields": fields})
        self.field_errors = errors

    def with_prefix(self, name: str) -> MessageInvalid:
        """Return the same error with `name` before each field, for a message nested in a field of that name."""
        return MessageInvalid([FieldError(f"{name}.{error.field}", error.message) for error in self.field_errors])


def header_to_json(header: AtpHeader) -> dict[str, str]:
    """Return the header as it appears in responses."""
    return dict(msgspec.to_builtins(header))
