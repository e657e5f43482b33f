"""The forms of pages: any text arrives as it was typed, and long ones block nobody."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import Request

from stentor.surfaces.dashboard.site import forms
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


async def read(body: bytes, media: str = "application/x-www-form-urlencoded; charset=UTF-8") -> FormData:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", media.encode())]
    return await forms.read_form(Request({"type": "http", "method": "POST", "headers": headers}, receive))


@pytest.mark.parametrize("shift", range(3))
async def test_the_fields_of_a_form_are_those_that_were_typed(shift: int) -> None:
    fields = [("n", ""), ("é&", "1 + 1 = 2;"), ("t", "x" * shift + "\n" * 50_000 + "é\n%+&= ü😀" * 10_000), ("n", "2")]
    assert (await read(urlencode(fields).encode())).multi_items() == fields


async def test_what_is_no_escape_or_no_text_is_read_as_well_as_possible() -> None:
    assert (await read(b"a=%zz%&&b&c=%ff")).multi_items() == [("a", "%zz%"), ("b", ""), ("c", "�")]
    assert not await read(b"a=1", "application/json")


async def test_a_form_with_too_many_fields_is_refused() -> None:
    assert len((await read(b"a=1&" * (forms.MAX_FIELDS - 1) + b"a=1")).multi_items()) == forms.MAX_FIELDS
    with pytest.raises(HTTPException, match="Too many fields"):
        await read(b"a=1&" * forms.MAX_FIELDS + b"a=1")


async def test_a_long_form_is_decoded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    decode, threads = forms._decode, set[int]()
    monkeypatch.setattr(forms, "_decode", lambda text: threads.add(threading.get_ident()) or decode(text))
    await read(b"t=" + b"%0A" * 100_000)
    assert threads
    assert threading.get_ident() not in threads


@requirement("dashboard.page-memory-editing")
async def test_a_form_above_the_limit_is_refused_with_a_page(make_board: Any) -> None:
    site = Site(await make_board(SERVICE_MAX_BODY_MB="1"))
    refused = await site.send("/memory/edit", 413, path="n.md", vault="default", base="", text="x" * 3_000_000)
    assert refused.headers["content-type"].startswith("text/html")
    assert "The body is larger than 3000000 bytes." in refused.text
    assert refused.headers["connection"] == "close"
    await (await site.browser()).aclose()
