"""Reads the forms of pages, which may have texts of megabytes, and the days that filters of lists have.

A form that edits a record sends all its fields, and along with them what its page showed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject

MAX_FIELDS = 1_000
INLINE_BYTES = 64 * 1024
"""Length from which a form is decoded in a thread."""
_PIECES = re.compile(rb"(?s).{1,65536}[^%]{0,2}")
"""Pieces of an encoded text, none of which ends within an escape such as `%0A`."""
# float() also takes `nan`, `inf` and `1_000`, which the gateway would reject with a less clear message.
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")


async def read_form(request: Request) -> FormData:
    """Return the fields of a form; none of a body of another type. Raises HTTPException for too many.

    Starlette's own parser works in the event loop, which a form of megabytes would block for seconds.
    """
    # The handler of an unexpected error has another Request, which cannot read the body again.
    if (form := getattr(request.state, "form", None)) is None:
        form = request.state.form = await _read_body(request)
    return form


async def _read_body(request: Request) -> FormData:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/x-www-form-urlencoded":
        return FormData()
    body = await request.body()
    if body.count(b"&") >= MAX_FIELDS:
        raise HTTPException(400, f"Too many fields: a form has at most {MAX_FIELDS}.")
    return _decode_form(body) if len(body) < INLINE_BYTES else await asyncio.to_thread(_decode_form, body)


def _decode_form(body: bytes) -> FormData:
    fields = (field.partition(b"=") for field in body.split(b"&") if field)
    return FormData([(_decode(name), _decode(value)) for name, _, value in fields])


def _decode(text: bytes) -> str:
    # In pieces: decoding a long one at once would keep all other threads waiting, too.
    pieces = _PIECES.findall(text.replace(b"+", b" "))
    return b"".join(map(unquote_to_bytes, pieces)).decode(errors="replace")


def times_of_days(filters: dict[str, str]) -> dict[str, str]:
    """Return the times (UTC) between which the days `from` to `to` are. Raises InvalidRequest for a wrong day."""
    first, last = _read_day(filters, "from"), _read_day(filters, "to")
    return {"since": f"{first}T00:00:00Z" if first else "", "until": _end_of(last) if last else ""}


def _read_day(filters: dict[str, str], name: str) -> date | None:
    try:
        return date.fromisoformat(filters[name]) if filters[name] else None
    except ValueError:
        raise InvalidRequest.of_field(name, "must be a day such as 2026-11-20") from None


def _end_of(day: date) -> str:
    """Return the start of the next day; "", which means no limit, for the last possible date."""
    return "" if day == date.max else f"{day + timedelta(days=1)}T00:00:00Z"


def read_shown(form: Mapping[str, str]) -> JsonObject:
    """Return the values that the form's page showed; none if it does not say."""
    shown = jsontext.decode_or_none(form.get("shown", "").encode())
    return shown if isinstance(shown, dict) else {}


def find_changed(fields: Mapping[str, Any], before: Mapping[str, Any]) -> JsonObject:
    """Return the fields that differ from what they were. Texts of a form come without the white space around them."""
    return {name: value for name, value in fields.items() if name not in before or value != _strip(before[name])}


def int_or_text(text: str) -> int | str:
    """Return the number in a form field, or the text itself, which the gateway rejects with a message."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else text


def number_or_text(text: str) -> float | str:
    """Return the number with or without decimals in a form field, or the text itself, as `int_or_text` does."""
    return float(text) if _NUMBER.fullmatch(text) else text


def _strip(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def read_task_input(text: str, before: object = "") -> object:
    """Return the input of a task from a form: JSON if it begins like an object or a list, otherwise the text.

    Any JSON if it was a number, true, false or null `before`. Raises InvalidRequest.
    """
    if before is None or isinstance(before, int | float):
        value = jsontext.decode_or_none(text.encode())
        if value is not None or text == "null":
            return value
    if text[:1] not in ("{", "["):
        return text
    try:
        return jsontext.decode(text.encode())
    except InvalidRequest as error:
        raise InvalidRequest(f"The input looks like JSON but is not valid: {error}") from None
