"""The reference of the HTTP API as pages, one for each group of operations: written from the OpenAPI document.

`reference` writes them into docs/generated with the rest; this module adds nothing that the operations do not declare.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from stentor.bootstrap.operations import OPERATIONS
from stentor.core.jsontext import JsonObject
from stentor.web.wire import API_PREFIX, COMMON_ERROR_RESPONSES

MAX_DEPTH = 3
"""How deep the fields of objects within objects are listed."""
COMMON = {str(status) for status in COMMON_ERROR_RESPONSES}
TITLES = {
    "atp": "ATP messages",
    "hebbian": "Learned weights",
    "llm": "Models",
    "authority": "Delegated authority",
    "workers": "Workers",
}
"""Titles of the groups whose tag says too little."""
CALL_NAMES = {operation.http.replace(" ", f" {API_PREFIX}"): operation.name for operation in OPERATIONS}


def http_pages(document: JsonObject) -> dict[str, str]:
    """Return the text of each page by its file name; `http.md` lists the others."""
    groups: dict[str, list[tuple[str, str, JsonObject]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path.startswith(API_PREFIX):
                groups.setdefault((operation.get("tags") or ["other"])[0], []).append((method.upper(), path, operation))
    schemas = document["components"]["schemas"]
    pages = {f"http-{tag}.md": _page(tag, operations, schemas) for tag, operations in sorted(groups.items())}
    return {"http.md": _index(groups)} | pages


def _title(tag: str) -> str:
    return TITLES.get(tag, tag.capitalize())


def _index(groups: Mapping[str, list[tuple[str, str, JsonObject]]]) -> str:
    lines = [
        "# HTTP API",
        "",
        "All paths are below `/api/v1`. Send a key as `Authorization: Bearer` or `X-API-Key`, and JSON bodies as "
        "`Content-Type: application/json`. Unknown fields are errors. Every operation with a name can also be called "
        "with `stentor call NAME`. The same is in `/openapi.json` for machines.",
        "",
        "Clients can be generated from `/openapi.json`; its operation ids are the names with `_` for `.`, such as "
        "`tasks_submit`. openapi-typescript makes fields with a default required in requests unless it runs with "
        '`--default-non-nullable false`; openapi-fetch needs `createClient<paths, "application/json">`, because errors '
        "have a second format.",
        "",
        "Any operation may answer these; [Error codes](errors.md) has the codes within them:",
        "",
        *_table(("status", "meaning"), ((s, r["description"]) for s, r in COMMON_ERROR_RESPONSES.items())),
    ]
    for tag, operations in sorted(groups.items()):
        lines += ["", f"## [{_title(tag)}](http-{tag}.md)", ""]
        lines += _table(
            ("operation", "what it does"),
            ((f"`{method} {path}`", _summary(operation)) for method, path, operation in operations),
        )
    return "\n".join(lines) + "\n"


def _page(tag: str, operations: list[tuple[str, str, JsonObject]], schemas: JsonObject) -> str:
    lines = [f"# HTTP API: {_title(tag)}", "", "What all operations have in common is in [HTTP API](http.md)."]
    for method, path, operation in operations:
        lines += ["", f"## {method} {path}", "", *_operation(method, path, operation, schemas)]
    return "\n".join(lines) + "\n"


def _operation(method: str, path: str, operation: JsonObject, schemas: JsonObject) -> Iterator[str]:
    yield " ".join(operation.get("description", "").split("\n\n")[0].split())
    for paragraph in operation.get("description", "").split("\n\n")[1:]:
        yield from ("", " ".join(paragraph.split()))
    permission = operation.get("x-permission")
    needs = (
        "Needs no key."
        if permission == "public"
        else "Needs the permission `" + str(permission).replace(" or ", "` or `") + "`."
    )
    name = CALL_NAMES.get(f"{method} {path}")
    yield from ("", needs + (f" Operation `{name}`." if name else ""))
    if parameters := operation.get("parameters"):
        yield from ("", "**Parameters**", "")
        yield from _table(("name", "in", "type", "meaning"), (_parameter(one) for one in parameters))
    body = _json_schema(operation.get("requestBody", {}))
    if body:
        yield from ("", "**Body**", "", *_fields_table(body, schemas))
    for status, response in operation["responses"].items():
        if status.startswith("2"):
            yield from ("", f"**Response {status}**", "", *_response(response, schemas))
    errors = [(s, r["description"]) for s, r in operation["responses"].items() if s[0] in "45" and s not in COMMON]
    if errors:
        yield from ("", "**Errors**: " + "; ".join(f"{s} {text[0].lower()}{text[1:]}" for s, text in errors) + ".")
    yield from ("", "```sh", _curl(method, path, body, schemas), "```")


def _parameter(parameter: JsonObject) -> tuple[str, ...]:
    required = ", required" if parameter.get("required") and parameter["in"] != "path" else ""
    default = parameter["schema"].get("default")
    meaning = parameter.get("description") or ""
    if default not in (None, ""):
        meaning = f"{meaning} Default: `{json.dumps(default)}`.".strip()
    return f"`{parameter['name']}`", parameter["in"] + required, _type(parameter["schema"]), meaning


def _response(response: JsonObject, schemas: JsonObject) -> Iterator[str]:
    content = response.get("content", {})
    schema = _json_schema(response)
    if schema:
        yield from _fields_table(schema, schemas)
    elif content:
        yield f"`{next(iter(content))}`"
    else:
        yield "No body."


def _json_schema(holder: JsonObject) -> JsonObject:
    return dict(holder.get("content", {}).get("application/json", {}).get("schema", {}))


def _fields_table(schema: JsonObject, schemas: JsonObject) -> Iterator[str]:
    resolved = _resolve(schema, schemas)
    rows = list(_fields(resolved, schemas, "", 1))
    if text := " ".join((resolved.get("description") or "").split()):
        yield from (text, "")
    if any(meaning for *_, meaning in rows):
        yield from _table(("field", "type", "meaning"), iter(rows))
    elif rows:
        yield from _table(("field", "type"), (row[:2] for row in rows))
    else:
        yield _type(resolved)


def _fields(schema: JsonObject, schemas: JsonObject, prefix: str, depth: int) -> Iterator[tuple[str, ...]]:
    required = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        inner = _object_in(field, schemas)
        mark = "" if name in required or not schema.get("examples") else " (optional)"
        meaning = " ".join((field.get("description") or "").split())
        yield f"`{prefix}{name}`{mark}", _type(field), meaning
        if inner and depth < MAX_DEPTH:
            yield from _fields(inner, schemas, f"{prefix}{name}.", depth + 1)


def _object_in(field: JsonObject, schemas: JsonObject) -> JsonObject | None:
    """Return the object of a field, also of a nullable one, or of the items of an array; None for anything else."""
    for choice in field.get("anyOf", [field]):
        resolved = _resolve(choice.get("items", choice), schemas)
        if resolved.get("properties"):
            return resolved
    return None


def _resolve(schema: JsonObject, schemas: JsonObject) -> JsonObject:
    choices = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    only = choices[0] if len(choices) == 1 else schema
    return dict(schemas[only["$ref"].rpartition("/")[2]]) if "$ref" in only else only


def _type(schema: JsonObject) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if "$ref" in schema:
        return "object"
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("format") or schema.get("type") or "any"
    if isinstance(kind, list):
        return " or ".join(map(str, kind))
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    limits = [(word, schema[key]) for word, key in (("≥", "minimum"), ("≤", "maximum")) if key in schema]
    limits += [("at most", f"{schema['maxLength']:,} characters")] if "maxLength" in schema else []
    return ", ".join([str(kind), *(f"{word} {value}" for word, value in limits)])


def _summary(operation: JsonObject) -> str:
    description: str = operation.get("description", "")
    return " ".join(description.split("\n\n")[0].split())


def _curl(method: str, path: str, body: JsonObject, schemas: JsonObject) -> str:
    command = f'curl -s "http://127.0.0.1:8080{path}" -H "X-API-Key: $KEY"'
    if method != "GET":
        command += f" -X {method}"
    examples = _resolve(body, schemas).get("examples") if body else None
    if examples:
        command += f" -H 'Content-Type: application/json' \\\n  -d {shlex.quote(json.dumps(examples[0]))}"
    return command


def _table(head: tuple[str, ...], rows: Iterator[tuple[Any, ...]]) -> Iterator[str]:
    for row in (head, tuple("---" for _ in head), *rows):
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"
