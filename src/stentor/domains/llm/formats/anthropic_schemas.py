"""JSON Schemas as Anthropic accepts them for answers and strict tools: less than OpenAI accepts. Pure."""

from __future__ import annotations

from typing import Any

from stentor.core.jsontext import JsonObject

_LIMITS = frozenset(
    "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern maxItems uniqueItems "
    "minProperties maxProperties".split()
)
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")


def fit_schema(schema: JsonObject) -> JsonObject:
    """Return a schema with closed objects, and with the limits that the API refuses in its descriptions instead.

    An object that names no properties, or that allows others explicitly, stays as it is: what it is for would not match
    a closed one.
    """
    limits = {name: value for name, value in schema.items() if _is_refused(name, value)}
    fitted = {name: _fit_keyword(name, value) for name, value in schema.items() if name not in limits}
    if "properties" in schema:
        fitted.setdefault("additionalProperties", False)
    if limits:
        told = ", ".join(f"{name}: {value}" for name, value in limits.items())
        fitted["description"] = f"{schema.get('description') or ''} ({told})".strip()
    return fitted


def _is_refused(keyword: str, value: Any) -> bool:
    if keyword == "format":
        return value not in _FORMATS
    return keyword in _LIMITS or (keyword == "minItems" and value not in (0, 1))


def _fit_keyword(keyword: str, value: Any) -> Any:
    """Return the value of a keyword with the schemas in it fitted.

    Those of `allOf` are not: if each of them was closed, no object would match all.
    """
    if keyword in ("properties", "$defs", "definitions") and isinstance(value, dict):
        return {name: _fit_any(schema) for name, schema in value.items()}
    if keyword in ("anyOf", "oneOf") and isinstance(value, list):
        return [_fit_any(schema) for schema in value]
    return _fit_any(value) if keyword == "items" else value


def _fit_any(schema: Any) -> Any:
    return fit_schema(schema) if isinstance(schema, dict) else schema
