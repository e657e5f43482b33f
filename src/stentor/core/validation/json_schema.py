"""JSON Schema (draft 2020-12): whether a schema is one, and whether a value matches it.

A schema comes from whoever registers an agent, a value from a model, and neither may block the service: nothing
is fetched, patterns take time in proportion to the text, and references are followed a limited number of times.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import unquote

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.core.lazy_import import lazy_module

jsonschema: Any = lazy_module("jsonschema")
re2: Any = lazy_module("re2")
referencing: Any = lazy_module("referencing")
MAX_MESSAGE_CHARACTERS = 500
MAX_REFERENCES = 10_000
"""References that are followed for one value: a few that refer to each other twice could take for ever."""
MAX_PARTS = 500
"""Objects and lists of a schema: to check one takes half a millisecond."""
_DATA = frozenset(("const", "enum", "default", "examples"))
"""Keywords whose content is data, and no schema."""


class SchemaUnusable(InvalidRequest):
    """The schema cannot be applied to this value, whatever the value is."""


def check_schema(schema: JsonObject) -> None:
    """Raise InvalidRequest for a schema that is invalid, or uses what is not supported here."""
    try:
        if sum(1 for _ in islice(_parts(schema), MAX_PARTS + 1)) > MAX_PARTS:
            raise InvalidRequest(f"it has more than {MAX_PARTS} objects and lists.")
        jsonschema.Draft202012Validator.check_schema(schema)
        # References and patterns are only used when a value needs them, so a wrong one would be found too late.
        for keyword, content in _walk(schema):
            _check_keyword(keyword, content, schema)
    except jsonschema.exceptions.SchemaError as error:
        raise InvalidRequest(f"not a JSON Schema: {error.message[:MAX_MESSAGE_CHARACTERS]}.") from None
    except RecursionError:
        raise InvalidRequest("the schema is nested too deep.") from None


def check_value(value: Any, schema: JsonObject) -> None:
    """Raise InvalidRequest, with the place and what is wrong there, for a value that does not match.

    Raises SchemaUnusable if the schema is what is wrong.
    """
    base, followed = jsonschema.Draft202012Validator, 0

    def follow(keyword: str) -> Any:
        def check(validator: Any, reference: str, instance: Any, schema: JsonObject) -> Iterator[Any]:
            nonlocal followed
            followed += 1
            if followed > MAX_REFERENCES:
                raise SchemaUnusable(f"The value needs more than {MAX_REFERENCES:,} references of the schema.")
            yield from base.VALIDATORS[keyword](validator, reference, instance, schema) or ()

        return check

    keywords = {
        "pattern": _match,
        "uniqueItems": _check_unique,
        "$ref": follow("$ref"),
        "$dynamicRef": follow("$dynamicRef"),
    }
    kind = jsonschema.validators.extend(base, keywords)
    try:
        error = jsonschema.exceptions.best_match(kind(schema, registry=referencing.Registry()).iter_errors(value))
    except (RecursionError, referencing.exceptions.Unresolvable) as problem:
        raise SchemaUnusable(f"The schema cannot be applied ({type(problem).__name__}).") from None
    if error is not None:
        raise InvalidRequest(f"{error.json_path}: {error.message[:MAX_MESSAGE_CHARACTERS]}.")


def _match(validator: Any, pattern: str, instance: Any, _: JsonObject) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not re2.search(pattern, instance):
        yield jsonschema.exceptions.ValidationError(f"{instance[:100]!r} does not match {pattern!r}")


def _check_unique(validator: Any, wanted: bool, instance: Any, _: JsonObject) -> Iterator[Any]:
    """Compare by a digest: the library compares each item with each."""
    if (
        wanted
        and validator.is_type(instance, "array")
        and len({*map(jsontext.sorted_digest, instance)}) < len(instance)
    ):
        yield jsonschema.exceptions.ValidationError("the items are not unique")


def _check_keyword(keyword: str, content: Any, schema: JsonObject) -> None:
    if keyword in ("$ref", "$dynamicRef") and isinstance(content, str):
        if not content.startswith("#"):
            raise InvalidRequest(f"the reference {content!r} points outside the schema.")
        if content.startswith("#/") and not _has_place(schema, content):
            raise InvalidRequest(f"the reference {content!r} cannot be resolved.")
    if keyword == "patternProperties":
        raise InvalidRequest("patternProperties is not supported; name the properties.")
    if keyword == "pattern" and isinstance(content, str):
        try:
            re2.compile(content)
        except re2.error:
            raise InvalidRequest(
                f"the pattern {content!r} is not supported (no lookaround, no back reference)."
            ) from None


def _has_place(schema: JsonObject, pointer: str) -> bool:
    """Return whether a JSON pointer leads to something in the schema."""
    place: Any = schema
    for part in pointer[2:].split("/"):
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        elif isinstance(place, dict) and name in place:
            place = place[name]
        else:
            return False
    return True


def _walk(schema: JsonObject) -> Iterator[tuple[str, Any]]:
    """Yield every member of every object in a schema, except in data."""
    for part in _parts(schema):
        if isinstance(part, dict):
            yield from part.items()


def _parts(schema: Any) -> Iterator[Any]:
    """Yield a schema and every object and list in it, except those in data."""
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            yield part
            pending += [value for name, value in part.items() if name not in _DATA]
        elif isinstance(part, list):
            yield part
            pending += part
