"""Between messages of gRPC and the wire models of the HTTP routes, which say what is valid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from stentor.core import jsontext
from stentor.core.clock import SECOND
from stentor.core.errors import InvalidRequest
from stentor.surfaces.grpc.calls import Call
from stentor.web.fast_routes import OptionalHeader
from stentor.web.wire import IdempotencyHeader

_IDEMPOTENCY = OptionalHeader("idempotency_key", IdempotencyHeader)


def idempotency_key(call: Call) -> str | None:
    """That of the metadata. Raises RequestValidationError for what can be none."""
    found: str | None = _IDEMPOTENCY.check(call.metadata.text(b"idempotency-key"))
    return found


def given(message: Message, names: Iterable[str]) -> dict[str, Any]:
    """The fields of these names that the message has, as a JSON body would have them."""
    return {name: getattr(message, name) for name in names if message.HasField(name)}


def parsed(field: str, text: str) -> Any:
    """The value of a JSON text. Raises InvalidRequest that names the field."""
    try:
        return jsontext.decode(text.encode())
    except InvalidRequest as error:
        raise InvalidRequest(f"{field}: {error.message}", {"fields": {field: error.message}}) from None


def timestamp(us: int | None) -> Timestamp | None:
    """Of microseconds since 1970."""
    return None if us is None else Timestamp(seconds=us // SECOND, nanos=us % SECOND * 1000)


class Words:
    """The words of an enum, such as `queued` for TASK_STATUS_QUEUED. That of 0 is None: nothing was said."""

    def __init__(self, kind: EnumTypeWrapper, prefix: str) -> None:
        self._names = {name.removeprefix(prefix).lower(): name for name, number in kind.items() if number}
        self._words = {number: name.removeprefix(prefix).lower() if number else None for name, number in kind.items()}

    def name(self, word: str | None) -> str | None:
        """What a message takes for the word."""
        return None if word is None else self._names[word]

    def word(self, field: str, number: int) -> str | None:
        """Raises InvalidRequest for a number that this version does not have."""
        if number not in self._words:
            reason = f"{number} is none of its values"
            raise InvalidRequest(f"{field}: {reason}", {"fields": {field: reason}})
        return self._words[number]
