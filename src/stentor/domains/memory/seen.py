"""Which state of a document each caller saw last, so that a change of another state is known as a conflict."""

from __future__ import annotations

from collections import OrderedDict

from stentor.domains.notes.model import NOTHING

MOST = 20_000
Who = tuple[str, str, str | None]
"""Tenant, key, and the agent that the key says it acts for."""


class Seen:
    """Bounded; what is forgotten counts as never seen, which at worst makes a conflict out of none."""

    def __init__(self, most: int = MOST) -> None:
        self._last: OrderedDict[tuple[Who, str], str] = OrderedDict()
        self._most = most

    def put(self, who: Who, path: str, content_hash: str) -> None:
        """`content_hash` is NOTHING where there was no note, or is none any more."""
        tenant, key, _ = who
        if self._last.get(((tenant, key, None), path)) == NOTHING:
            del self._last[(tenant, key, None), path]  # its agents have seen a newer state
        self._last[who, path] = content_hash
        self._last.move_to_end((who, path))
        if len(self._last) > self._most:
            self._last.popitem(last=False)

    def of(self, who: Who, path: str) -> list[str]:
        """The states that the agent, and its key without an agent, saw last; the agent's own first."""
        tenant, key, _ = who
        found = (self._last.get((one, path)) for one in (who, (tenant, key, None)))
        return [content_hash for content_hash in found if content_hash is not None]
