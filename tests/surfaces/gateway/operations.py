"""Every operation of the gateway, read from the generated OpenAPI (a test holds the service to that file)."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

DOCUMENT: dict[str, Any] = json.loads((Path(__file__).parents[3] / "docs" / "generated" / "openapi.json").read_text())
UNKNOWN = "00000000-0000-7000-8000-000000000000"
"""An id that nothing has."""


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    spec: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def permission(self) -> str:
        return str(self.spec["x-permission"])

    @property
    def public(self) -> bool:
        return self.permission == "public"

    @property
    def path_parameters(self) -> list[str]:
        return re.findall(r"\{(\w+)\}", self.path)

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """Query and header parameters."""
        return [p for p in self.spec.get("parameters", []) if p["in"] != "path"]

    @property
    def has_body(self) -> bool:
        return "requestBody" in self.spec

    @property
    def body_required(self) -> bool:
        return bool(self.spec.get("requestBody", {}).get("required"))

    @property
    def example(self) -> dict[str, Any]:
        """A copy of the first example of its body, with an id of this world where ids stand."""
        schema = body_schema(self)
        return copy.deepcopy(dict(schema["examples"][0]))

    def url(self, record_id: str = UNKNOWN) -> str:
        """The path with one id, escaped, in every place."""
        return re.sub(r"\{\w+\}", lambda _: quote(record_id, safe=""), self.path)

    @property
    def query(self) -> dict[str, str]:
        """The query parameters without which it is malformed."""
        return {p["name"]: UNKNOWN for p in self.parameters if p["in"] == "query" and p.get("required")}


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    """Follow one reference."""
    if "$ref" in schema:
        return dict(DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    return schema


def body_schema(operation: Operation) -> dict[str, Any]:
    """The object schema of its body; an optional body is that or null."""
    schema = operation.spec["requestBody"]["content"]["application/json"]["schema"]
    choices = [s for s in schema.get("anyOf", [schema]) if s.get("type") != "null"]
    assert len(choices) == 1
    return resolve(choices[0])


OPERATIONS = [
    Operation(method.upper(), path, spec)
    for path, methods in DOCUMENT["paths"].items()
    for method, spec in methods.items()
]
PROTECTED = [o for o in OPERATIONS if not o.public]
WITH_BODY = [o for o in OPERATIONS if o.has_body]
