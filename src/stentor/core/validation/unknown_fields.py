"""Say where an unknown field of a request body belongs, in place of pydantic's "Extra inputs are not permitted"."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel

_UNKNOWN = "extra_forbidden"
MAX_LISTED = 12
MAX_COMPARED = 100
"""Characters of a name that is compared with the known ones."""


def explain_unknown_fields(errors: Sequence[Any], body: Any) -> list[Any]:
    """Return pydantic's errors with a better message for each unknown field; `body` is the type of the body.

    Locations begin with "body". Errors of other kinds stay as they are.
    """
    return [_explain(error, body) if error.get("type") == _UNKNOWN else error for error in errors]


def _explain(error: Any, body: Any) -> Any:
    location = [part for part in error["loc"] if isinstance(part, str)]
    *path, name = location[1:] if location[:1] == ["body"] else location
    model = next(_models(body), None)
    root = model
    for part in path:
        field = model.model_fields.get(part) if model else None
        model = next(_models(field.annotation), None) if field else None
    return error if model is None else {**error, "msg": f"unknown field{_hint(name, model, root, path)}"}


def _hint(name: str, model: type[BaseModel], root: type[BaseModel] | None, path: Sequence[str]) -> str:
    for field, info in model.model_fields.items():
        if any(name in nested.model_fields for nested in _models(info.annotation)):
            return f"; it belongs in `{field}`, as `{'.'.join([*path, field, name])}`"
    if path and root is not None and name in root.model_fields:
        return f"; it belongs next to `{path[0]}`, not into it"
    # It takes time in proportion to the length, which is the client's choice.
    similar = difflib.get_close_matches(name, model.model_fields, 1) if len(name) <= MAX_COMPARED else []
    if similar:
        return f"; did you mean `{similar[0]}`?"
    known = list(model.model_fields)
    return f"; the fields are {', '.join(known)}" if known and len(known) <= MAX_LISTED else ""


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation: itself, or the members of a union, a list or an Annotated."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
