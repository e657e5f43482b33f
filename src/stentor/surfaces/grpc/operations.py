"""Serves operations over gRPC: converts a request to the operation's parameters, and its output to a response.

Fields are matched by name. A field `x_json` holds the JSON text of `x`; the enum value `TASK_STATUS_QUEUED` is the
text `queued`. Values are validated by the operation's own types, as over HTTP (`web/operations.py`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cache
from types import MappingProxyType
from typing import Any, get_args

from google.protobuf.descriptor import EnumDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import BaseModel, TypeAdapter

from stentor.auth.principal import Permission
from stentor.core import jsontext
from stentor.core.clock import SECOND, micros_from_datetime
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.surfaces.grpc.calls import Call
from stentor.surfaces.grpc.methods import UnaryMethod
from stentor.web.fast_routes import OptionalHeader, validate_value
from stentor.web.operations import Operation

CompleteResponse = Callable[[Any, Any], None]
"""Sets response fields that do not follow from the names; takes the output and the response."""
Reader = Callable[[Call, Message], Any]
"""Reads one parameter of an operation from a call and its request."""


def operation_methods(
    service: ServiceDescriptor,
    operations: Iterable[Operation],
    complete: Mapping[str, CompleteResponse] = MappingProxyType({}),
) -> dict[str, UnaryMethod]:
    """Build the methods of a service that are operations, keyed by their full names."""
    return {
        f"/{service.full_name}/{operation.grpc}": _build_method(
            operation, service.methods_by_name[operation.grpc], complete.get(operation.grpc)
        )
        for operation in operations
        if operation.grpc is not None
    }


def _build_method(operation: Operation, method: MethodDescriptor, complete: CompleteResponse | None) -> UnaryMethod:
    # Signatures are inspected once here, not in each call.
    readers = [_reader(p) for p in operation.signature.parameters.values() if p.name != "caller"]
    response_type = GetMessageClass(method.output_type)

    async def execute(call: Call, request: Message) -> Any:
        arguments = {name: read(call, request) for name, read in readers}
        output = await operation.run(call.caller, **arguments)
        response = to_message(output, response_type)
        if complete is not None:
            complete(output, response)
        return response

    permission: Permission = operation.permission  # pyrefly: ignore[bad-assignment] - no public operation has a gRPC method
    return UnaryMethod(permission, GetMessageClass(method.input_type), execute)


def _reader(parameter: inspect.Parameter) -> tuple[str, Reader]:
    """Return the reader of a parameter: a body from the whole request, a header from the metadata, else a field."""
    annotation, name = parameter.annotation, parameter.name
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        adapter = TypeAdapter(annotation)
        return name, lambda call, request: validate_value(adapter, to_fields(request, annotation))
    if (header := OptionalHeader.of(name, annotation)) is not None:
        key = header.alias.lower().encode()
        return name, lambda call, request: header.check(call.metadata.get_text(key))
    return name, lambda call, request: getattr(request, name)


def to_fields(message: Message, model: type[BaseModel] | None, where: str = "") -> JsonObject:
    """Convert a message to the dictionary of an equal JSON body.

    With a model: only fields that the model has. Without one: only fields that are set. `where` is a prefix of field
    names in errors. Raises InvalidRequest for invalid JSON text, and for an unknown enum number.
    """
    if model is None:
        return {field.json_name: _to_value(field, value, None, where) for field, value in message.ListFields()}
    fields = {}
    for field in message.DESCRIPTOR.fields:
        name = field.name.removesuffix("_json")
        if (declared := model.model_fields.get(name)) is None:
            continue
        # Not given is not the same as empty: the model's own default applies.
        if field.has_presence and not message.HasField(field.name):
            # The model would name the field `x`, but the client knows it as `x_json`.
            if name != field.name and declared.is_required():
                raise _field_error(where + field.name, "is required")
            continue
        value = _to_value(field, getattr(message, field.name), declared.annotation, where)
        # None of an enum is its value 0, which means that the field was not set; None of JSON is null.
        if value is not None or field.enum_type is None:
            fields[name] = value
    return fields


def _to_value(field: Any, value: Any, annotation: Any, where: str) -> Any:
    if field.is_repeated:
        if field.message_type is None:
            return list(value)
        return [to_fields(part, _model_in(annotation), f"{where}{field.name}.{i}.") for i, part in enumerate(value)]
    if isinstance(value, Timestamp):
        try:
            return value.ToJsonString()
        except ValueError as error:
            raise _field_error(where + field.name, str(error)) from None
    if field.message_type is not None:
        return to_fields(value, _model_in(annotation), f"{where}{field.name}.")
    if field.enum_type is not None:
        values = enum_values(field.enum_type)
        if value not in values.texts:
            raise _field_error(where + field.name, f"{value} is not a value of this enum")
        return values.texts[value]
    if field.name.endswith("_json"):
        try:
            return jsontext.decode(value.encode())
        except InvalidRequest as error:
            raise _field_error(where + field.name, error.message) from None
    return value


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation: `Model`, `Model | None`, `Annotated[list[Model], ...]`; else None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)


def _field_error(field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {reason}", {"fields": {field: reason}})


def to_message(source: Any, message_type: type[Message]) -> Any:
    """Convert an output, an object or a mapping, to a message. Values that are None or absent stay unset."""
    message = message_type()
    for field in message_type.DESCRIPTOR.fields:
        name = field.name.removesuffix("_json")
        value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        if value is None:
            continue
        if field.is_repeated:
            getattr(message, field.name).extend(value)
        elif field.message_type is not None:
            part = getattr(message, field.name)
            part.CopyFrom(to_timestamp(value) if isinstance(part, Timestamp) else to_message(value, type(part)))
        elif field.enum_type is not None:
            setattr(message, field.name, enum_values(field.enum_type).numbers[value])
        else:
            setattr(message, field.name, value if name == field.name else jsontext.dump(value))
    return message


def to_timestamp(time: int | str) -> Timestamp:
    """Convert a time to a message, from microseconds since 1970 or from ISO 8601."""
    micros = micros_from_datetime(datetime.fromisoformat(time)) if isinstance(time, str) else time
    return Timestamp(seconds=micros // SECOND, nanos=micros % SECOND * 1000)


class EnumValues:
    """The texts of an enum, such as `queued` for TASK_STATUS_QUEUED. The value 0 means "not given": None."""

    def __init__(self, enum: EnumDescriptor) -> None:
        # Protobuf's style guide prefixes the values, because they share one scope with those of other enums.
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
        self.texts = {v.number: v.name.removeprefix(prefix).lower() if v.number else None for v in enum.values}
        self.numbers = {text: number for number, text in self.texts.items() if text is not None}


@cache
def enum_values(enum: EnumDescriptor) -> EnumValues:
    return EnumValues(enum)
