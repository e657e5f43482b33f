"""From which time on rows may still become visible that other processes write.

A row has the time at which its transaction began, and is visible from the commit on, which may come much later: the
transaction waits for a lock, its process stands still, or the commit waits for a standby.
"""

from __future__ import annotations

from stentor.core.clock import SECOND
from stentor.core.db.driver import Sql
from stentor.core.db.transaction import Tx

LONGEST_US = 180 * SECOND
"""How long ago a transaction of ours may have begun that still runs: more than the server lets it. A transaction of
another program, which may run for a day, must not have everything read again that changed in this day."""
_SNAPSHOT = Sql(
    """select cast(cast(pg_snapshot_xmin(s) as text) as bigint), cast(cast(pg_snapshot_xmax(s) as text) as bigint)
    from (select pg_current_snapshot() as s) as snapshot"""
)


class CommitHorizon:
    """Finds, at each read, the time from which on the next one must read. Times in microseconds of the database."""

    def __init__(self) -> None:
        self._reads: list[tuple[int, int]] = []
        """Time of each earlier read, and the first transaction number that was not given out then."""

    def read(self, tx: Tx) -> tuple[int, int, int]:
        """Return what `advance` needs: the time, and the numbers that PostgreSQL has for the snapshot of `tx`."""
        oldest_running, next_number = tx.rows(_SNAPSHOT)[0]
        return tx.now, oldest_running, next_number

    def advance(self, now: int, oldest_running: int, next_number: int) -> int:
        """Return a time before which no transaction began that was not visible at this read.

        A transaction gets its number with its first write, so for the short time before that it may be older.
        """
        # None from before the clock was set back.
        self._reads = [read for read in self._reads if now - LONGEST_US <= read[0] <= now]
        self._reads.append((now, next_number))
        # What is not visible yet got its number after such a read.
        ended = [n for n, (_, number) in enumerate(self._reads) if number <= oldest_running]
        if not ended:
            return now - LONGEST_US
        del self._reads[: ended[-1]]
        return self._reads[0][0]
