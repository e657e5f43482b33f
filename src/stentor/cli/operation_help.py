"""What `stentor call NAME --help` prints: the parameters of an operation and the fields of its body."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator
from typing import Any

from stentor.cli.output import console, render_table
from stentor.core import jsontext
from stentor.core.jsontext import JsonObject
from stentor.web.operations import Operation
from stentor.web.wire import API_PREFIX, Disconnected

Row = tuple[str, str, str, str]


def print_operation_help(operation: Operation) -> None:
    """Print a command to copy, what the operation does, and its parameters and fields with their types."""
    parameters = {
        name: parameter
        for name, parameter in operation.signature.parameters.items()
        if name not in ("self", "caller") and parameter.annotation != Disconnected
    }
    schemas = {name: operation.parameters[name].json_schema() for name in parameters}
    body = schemas.pop("body", None)
    console.print(f"\n {_command(operation, schemas, body)}\n", markup=False, soft_wrap=True)
    console.print(inspect.getdoc(operation.run) or "", markup=False)
    method, _, path = operation.http.partition(" ")
    address = f"{method} {API_PREFIX}{path}"
    console.print(f"\nIt needs a key with {operation.permission}. Over HTTP: {address}\n", markup=False, soft_wrap=True)
    rows = [
        _row(name, schema, required=parameters[name].default is inspect.Parameter.empty)
        for name, schema in schemas.items()
    ]
    if rows:
        console.print(render_table(("parameter", "type", "needed", "what it is"), rows))
    if body is not None:
        console.print(render_table(("field of --body", "type", "needed", "what it is"), _fields(body)))


def _command(operation: Operation, schemas: dict[str, JsonObject], body: JsonObject | None) -> str:
    """Return a command with what the address needs, and the example of the body."""
    words = [f"{name}=..." for name in schemas if f"{{{name}}}" in operation.http]
    if body is not None:
        example = next(iter(body.get("examples", ())), dict.fromkeys(body.get("required", ()), "..."))
        words += ["--body", shlex.quote(jsontext.dump(example))]
    return " ".join(("stentor call", operation.name, *words))


def _fields(body: JsonObject) -> Iterator[Row]:
    required = body.get("required", ())
    for name, schema in body.get("properties", {}).items():
        yield _row(name, schema, required=name in required)


def _row(name: str, schema: JsonObject, *, required: bool) -> Row:
    return name, _describe_type(schema), "yes" if required else "", str(schema.get("description", ""))


def _describe_type(schema: JsonObject) -> str:
    """Return the type of a value in words; null, which stands for a parameter that is left out, is not named."""
    if options := [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]:
        return " or ".join(dict.fromkeys(map(_describe_type, options)))
    values: list[Any] = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if values:
        return ", ".join(map(str, values))
    if "$ref" in schema:
        return "object"
    if schema.get("type") == "array":
        return f"list of {_describe_type(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type", "any JSON"))
