"""The two searches: words, and JsonLogic."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from stentor.surfaces.vault import errors
from stentor.surfaces.vault.errors import Refused
from stentor.surfaces.vault.logic.evaluation import Rule
from stentor.surfaces.vault.requests import content_type, json_of
from stentor.surfaces.vault.simple import Hit
from stentor.surfaces.vault.texts import Texts

JSON_LOGIC = "application/vnd.olrapi.jsonlogic+json"
DATAVIEW = "application/vnd.olrapi.dataview.dql+txt"
AROUND = 100


class Searches:
    def __init__(self, texts: Texts) -> None:
        self._texts = texts

    async def simple(self, request: Request) -> list[Hit]:
        query = request.query_params.get("query", "")
        if not query.strip():
            raise Refused(errors.NO_QUERY, "The parameter query is missing.")
        await self._texts.ready()
        return await asyncio.to_thread(self._texts.search, query, _around(request))

    async def logic(self, request: Request, body: bytes) -> list[dict[str, Any]]:
        """Notes for which the rule is true, with what it gives. Raises Refused, BadLogic."""
        kind = content_type(request)
        if not kind:
            raise Refused(errors.NO_CONTENT_TYPE, f"The header Content-Type is missing; it is {JSON_LOGIC}.")
        if kind == DATAVIEW:
            raise Refused(errors.BAD_CONTENT_TYPE, "Dataview's language is not understood; JsonLogic is.")
        if kind != JSON_LOGIC:
            raise Refused(errors.BAD_CONTENT_TYPE, f"A search is sent as {JSON_LOGIC}, not as {kind[:80]!r}.")
        rule = Rule(json_of(body))
        await self._texts.ready()
        return await asyncio.to_thread(rule.matches, self._texts.facts())


def _around(request: Request) -> int:
    given = request.query_params.get("contextLength", str(AROUND))
    return min(10_000, int(given)) if given.isascii() and given.isdigit() and len(given) < 6 else AROUND
