"""Gives work up when the caller that waits for it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import HTTPException
from starlette.requests import Request

T = TypeVar("T")


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result; when the caller leaves first, `work` is cancelled and nobody reads the answer."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise HTTPException(400, "The caller left.")
    finally:
        leaving.cancel()
        doing.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _left(request: Request) -> None:
    """Waits for the end of the connection; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
