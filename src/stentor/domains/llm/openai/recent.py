"""What models said a short while ago, for clients that refer to it by its id instead of sending it again.

Vercel's `@ai-sdk/openai` does so unless it is told `store: false`. Kept in the memory of this process alone and never
written: another process, or this one an hour later, does not know the id, and the request is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_CHARACTERS = 8_000_000
SECONDS = 3600.0


class Recent:
    """Texts by owner and id; the oldest go first when there are too many characters.

    An owner is a key of a tenant: ids stand in the run log, where other keys read them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = MOST_CHARACTERS) -> None:
        self._clock = clock
        self._most = most
        self._size = 0
        self._kept: dict[tuple[str, str], tuple[float, str]] = {}

    def keep(self, owner: str, id_: str, text: str) -> None:
        """An id is kept once: it names one answer."""
        self._kept[owner, id_] = (self._clock(), text)
        self._size += len(text)
        while self._size > self._most or self._is_old(next(iter(self._kept.values()), None)):
            _, gone = self._kept.pop(next(iter(self._kept)))
            self._size -= len(gone)

    def text(self, owner: str, id_: str) -> str | None:
        """None for what is not known, not any more, or another key's."""
        found = self._kept.get((owner, id_))
        return None if found is None or self._is_old(found) else found[1]

    def _is_old(self, kept: tuple[float, str] | None) -> bool:
        return kept is not None and self._clock() - kept[0] > SECONDS
