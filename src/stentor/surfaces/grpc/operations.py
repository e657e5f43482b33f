"""Serves operations over gRPC: a message becomes the operation's parameters, its output becomes a message.

Fields are matched by name. A field `x_json` holds the JSON text of `x`; the enum value `TASK_STATUS_QUEUED` is the
text `queued`. What is valid is said by the operation's own types, as over HTTP.
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
from stentor.surfaces.grpc.calls import Call
from stentor.surfaces.grpc.methods import Unary
from stentor.web.fast_routes import OptionalHeader, validate_value
from stentor.web.operations import Operation

Amend = Callable[[Any, Any], None]
"""Sets in a message what does not follow from the names; takes the output and the message."""


def operation_methods(
    service: ServiceDescriptor, operations: Iterable[Operation], amend: Mapping[str, Amend] = MappingProxyType({})
) -> dict[str, Unary]:
    """The unary methods of a service that are operations, by their full names."""
    return {
        f"/{service.full_name}/{operation.grpc}": _unary(
            operation, service.methods_by_name[operation.grpc], amend.get(operation.grpc)
        )
        for operation in operations
        if operation.grpc is not None
    }


def _unary(operation: Operation, method: MethodDescriptor, amend: Amend | None) -> Unary:
    read = [_reader(p) for p in operation.signature.parameters.values() if p.name != "caller"]
    answer_type = GetMessageClass(method.output_type)

    async def work(call: Call, request: Message) -> Any:
        arguments = {name: value(call, request) for name, value in read}
        output = await operation.run(call.caller, **arguments)
        message = to_message(output, answer_type)
        if amend is not None:
            amend(output, message)
        return message

    permission: Permission = operation.permission  # type: ignore[assignment]
    return Unary(permission, GetMessageClass(method.input_type), work)


Reader = Callable[[Call, Message], Any]


def _reader(parameter: inspect.Parameter) -> tuple[str, Reader]:
    """How a parameter is read from a call: a body from the whole message, a header from the metadata, else a field."""
    annotation, name = parameter.annotation, parameter.name
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        adapter = TypeAdapter(annotation)
        return name, lambda call, request: validate_value(adapter, to_fields(request, annotation))
    if (header := OptionalHeader.of(name, annotation)) is not None:
        key = header.alias.lower().encode()
        return name, lambda call, request: header.check(call.metadata.text(key))
    return name, lambda call, request: getattr(request, name)


def to_fields(message: Message, model: type[BaseModel] | None = None, where: str = "") -> dict[str, Any]:
    """A message as a JSON body would have it; with a model only the fields that the model has, without one
    those that are set. `where` is the prefix of field names in errors.

    Raises InvalidRequest for a JSON text that is none, and for a number that an enum of this version does not have.
    """
    if model is None:
        return {field.json_name: _to_value(field, value, None, where) for field, value in message.ListFields()}
    fields = {}
    for field in message.DESCRIPTOR.fields:
        name = field.name.removesuffix("_json")
        if (declared := model.model_fields.get(name)) is None:
            continue
        if field.has_presence and not message.HasField(field.name):
            if name != field.name and declared.is_required():
                raise _wrong(where + field.name, "Field required")
            continue
        value = _to_value(field, getattr(message, field.name), declared.annotation, where)
        if value is not None:
            fields[name] = value
    return fields


def _to_value(field: Any, value: Any, annotation: Any, where: str) -> Any:
    if field.is_repeated:
        if field.message_type is None:
            return list(value)
        return [to_fields(part, _model_in(annotation), f"{where}{field.name}.{at}.") for at, part in enumerate(value)]
    if field.message_type is not None:
        return to_fields(value, _model_in(annotation), f"{where}{field.name}.")
    if field.enum_type is not None:
        values = enum_values(field.enum_type)
        if value not in values.texts:
            raise _wrong(where + field.name, f"{value} is none of its values")
        return values.texts[value]
    if field.name.endswith("_json"):
        try:
            return jsontext.decode(value.encode())
        except InvalidRequest as error:
            raise _wrong(where + field.name, error.message) from None
    return value


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a field: `Model`, `Model | None`, `Annotated[list[Model], ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for part in get_args(annotation) if (model := _model_in(part)) is not None), None)


def _wrong(field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {reason}", {"fields": {field: reason}})


def to_message(source: Any, kind: type[Message]) -> Any:
    """An output as a message: from its attributes, or from a mapping. What is None or absent stays unset."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
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


def to_timestamp(moment: int | str) -> Timestamp:
    """A time as a message, from microseconds since 1970 or from ISO 8601."""
    micros = micros_from_datetime(datetime.fromisoformat(moment)) if isinstance(moment, str) else moment
    return Timestamp(seconds=micros // SECOND, nanos=micros % SECOND * 1000)


class EnumValues:
    """The texts of an enum, such as `queued` for TASK_STATUS_QUEUED. The value 0 means that nothing was given: None."""

    def __init__(self, enum: EnumDescriptor) -> None:
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
        self.texts = {v.number: v.name.removeprefix(prefix).lower() if v.number else None for v in enum.values}
        self.numbers = {text: number for number, text in self.texts.items() if text is not None}


@cache
def enum_values(enum: EnumDescriptor) -> EnumValues:
    return EnumValues(enum)
