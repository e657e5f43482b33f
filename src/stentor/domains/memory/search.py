"""Searches over the index. Source: core contract, "Memory bus"."""

from __future__ import annotations

from collections.abc import Sequence

from stentor.core.db import Database
from stentor.core.runlog import Draft
from stentor.domains.memory.index import keyword
from stentor.domains.memory.index.keyword import Field, Hit, Match, MatchMode
from stentor.domains.memory.service import Bus, Caller
from stentor.domains.memory.text import words


class Search:
    """Each search leaves a memory_read event; what cannot be recorded is not answered."""

    def __init__(self, db: Database, index: Database, bus: Bus) -> None:
        self._db = db
        self._index = index
        self._bus = bus

    async def keyword(
        self, caller: Caller, wanted: Sequence[str], fields: Sequence[Field], mode: MatchMode, limit: int
    ) -> tuple[list[Match], int]:
        """The best matches, and how many there are in all."""
        query = keyword.query_of(wanted, fields, mode)
        hits: list[Hit] = []
        total = 0
        if query is not None:
            hits, total = await self._index.read(lambda tx: (keyword.find(tx, query, limit), keyword.count(tx, query)))
        looked_for = frozenset(term for text in wanted for term in words.terms(text))
        await self._record(caller, "keyword", total)
        return keyword.shown(hits, looked_for), total

    async def _record(self, caller: Caller, mode: str, total: int) -> None:
        meta = {"search": mode, "matches": total, "by": caller.principal.name}
        event = Draft("memory_read", "memory", f"A {mode} search found {total}.", meta, agent_id=caller.agent_id)
        await self._db.write(lambda tx: self._bus.record(tx, caller, event))
