"""What v1 has promised, a line each: operations, their parameters, statuses, fields, and codes of errors.

`v1.txt` is the list. `python -m tests.surfaces.gateway.promised` (a part of `make docs`) adds what is new; nothing
takes a line away: within v1 a client may rely on each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_name("v1.txt")
GENERATED = Path(__file__).parents[3] / "docs" / "generated"
_ERROR = re.compile(r"^\| `(\w+)` \| (\d+) \|", re.MULTILINE)
METHODS = ("get", "put", "post", "delete", "patch")
Schema = dict[str, Any]


def listed() -> list[str]:
    return LIST.read_text().splitlines() if LIST.exists() else []


def generated() -> tuple[dict[str, Any], str]:
    """The description of the service and the table of its errors, as they are now."""
    return json.loads((GENERATED / "openapi.json").read_text()), (GENERATED / "errors.md").read_text()


def promises(document: dict[str, Any], errors: str) -> set[str]:
    """What the description and the table of errors say."""
    found = {f"error {code} {status}" for code, status in _ERROR.findall(errors)}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method in METHODS:
                found.update(_of_operation(document, f"{method.upper()} {path}", operation))
    return found


def _of_operation(document: Schema, name: str, operation: Schema) -> Iterator[str]:
    yield name
    for one in operation.get("parameters", []):
        yield f"{name} {one['in']} {one['name']}"
        if not one.get("required"):
            yield f"{name} {one['in']} {one['name']}, not required"
    for schema in _schemas(operation.get("requestBody", {})):
        for field, required in _fields(document, schema):
            yield f"{name} takes {field}"
            if not required:
                yield f"{name} takes {field}, not required"
    for status, answer in operation["responses"].items():
        yield f"{name} {status}"
        if status < "4":  # errors have one envelope, which has tests of its own
            for schema in _schemas(answer):
                yield from (f"{name} {status} {field}" for field, _ in _fields(document, schema))


def _schemas(holder: Schema) -> Iterator[Schema]:
    for media in holder.get("content", {}).values():
        yield media.get("schema", {})


def _fields(document: Schema, schema: Schema, at: str = "", seen: tuple[str, ...] = ()) -> Iterator[tuple[str, bool]]:
    """Every field with the way to it, and whether it is required; what refers to itself is followed once."""
    if ref := schema.get("$ref"):
        if ref not in seen:
            yield from _fields(document, document["components"]["schemas"][ref.rpartition("/")[2]], at, (*seen, ref))
        return
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _fields(document, part, at, seen)
    for name, inner in schema.get("properties", {}).items():
        yield f"{at}.{name}", name in schema.get("required", ())
        yield from _fields(document, inner, f"{at}.{name}", seen)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(inner := schema.get(key), dict):
            yield from _fields(document, inner, at + mark, seen)


if __name__ == "__main__":
    LIST.write_text("".join(f"{line}\n" for line in sorted({*promises(*generated()), *listed()})))
