"""JSON Schema (draft 2020-12): whether a schema is one, and whether a value matches it.

References to other documents are refused: nothing is fetched.
"""

from __future__ import annotations

from typing import Any

from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.core.lazy_import import lazy_module

jsonschema: Any = lazy_module("jsonschema")
referencing: Any = lazy_module("referencing")
MAX_MESSAGE_CHARACTERS = 500


def check_schema(schema: JsonObject) -> None:
    """Raise InvalidRequest for what is no JSON Schema, or refers to another document."""
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        # A reference is only followed when a value needs it, so a wrong one would be found too late.
        if reference := _find_foreign_reference(schema):
            raise InvalidRequest(f"the reference {reference!r} leads out of the schema.")
    except jsonschema.exceptions.SchemaError as error:
        raise InvalidRequest(f"no JSON Schema: {error.message[:MAX_MESSAGE_CHARACTERS]}.") from None
    except RecursionError:
        raise InvalidRequest("the schema is too deep.") from None


def check_value(value: Any, schema: JsonObject) -> None:
    """Raise InvalidRequest, with the place and what is wrong there, for a value that does not match."""
    validator = jsonschema.Draft202012Validator(schema, registry=referencing.Registry())
    try:
        error = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except (RecursionError, referencing.exceptions.Unresolvable) as problem:
        raise InvalidRequest(f"The schema cannot be applied: {type(problem).__name__}.") from None
    if error is not None:
        raise InvalidRequest(f"{error.json_path}: {error.message[:MAX_MESSAGE_CHARACTERS]}.")


def _find_foreign_reference(schema: Any) -> str | None:
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name in ("$ref", "$dynamicRef") and isinstance(value, str) and not value.startswith("#"):
                return value
        schema = list(schema.values())
    if isinstance(schema, list):
        return next(filter(None, map(_find_foreign_reference, schema)), None)
    return None
