"""From which time on rows may still become visible that other processes write.

A row has the time at which its transaction began, and is visible from the commit on, which may come much later: the
transaction waits for a lock, its process is stopped, or the commit waits for a standby.
"""

from __future__ import annotations

from collections.abc import Iterable

from stentor.core.clock import SECOND
from stentor.core.db.sql import Sql
from stentor.core.db.transaction import Tx

LONGEST_US = 180 * SECOND
"""How long a transaction is waited for. One of another program may run for a day, and must not have everything read
again at each poll that changed in this day, only once, when it has ended."""
# The snapshot's xmax is the number after the last one that has ended. Larger ones may have been given out: up to the
# counter, from which `age` counts.
_SNAPSHOT = Sql(
    """select array(select cast(cast(pg_snapshot_xip(s) as text) as bigint)), cast(cast(xmax as text) as bigint),
    cast(cast(xmax as text) as bigint) + age(cast(xmax as xid))
    from (select s, pg_snapshot_xmax(s) as xmax from (select pg_current_snapshot() as s) as snapshot) as numbers"""
)


class CommitHorizon:
    """Finds, at each read, the time from which on the next one must read. Times in microseconds of the database."""

    def __init__(self) -> None:
        self._reads: list[tuple[int, int]] = []
        """Time of each earlier read, and the first transaction number that was not given out then."""
        self._dropped = (0, 0)
        """The last read that is longer than LONGEST_US ago. Smaller numbers are not awaited."""
        self._abandoned: dict[int, int] = {}
        """Numbers that are not awaited and have not ended, each with a time before which its transaction did not begin.
        The first number after the last one that has ended stands for all from there on."""
        self._after_ended = 0

    def read(self, tx: Tx) -> tuple[int, list[int], int, int]:
        """Return what `advance` needs: the time, and the numbers that PostgreSQL has for the snapshot of `tx`."""
        running, after_ended, next_number = tx.rows(_SNAPSHOT)[0]
        return tx.now, running, after_ended, next_number

    def advance(self, now: int, running: Iterable[int], after_ended: int, next_number: int) -> int:
        """Return a time before which no transaction began that was not visible at this read.

        Running are the transactions with the numbers `running`, and perhaps those from `after_ended` to `next_number`.
        A transaction gets its number with its first write, so for the short time before that it may be older. The time
        goes back when a transaction ends that was no longer waited for, and is 0 after the clock was set back.
        """
        running = list(running)
        is_set_back = bool(self._reads) and now < self._reads[-1][0]
        if is_set_back:
            # The earlier times say nothing about transactions that begin now.
            self._reads, self._dropped = [], (0, self._dropped[1])
            self._abandoned = dict.fromkeys(self._abandoned, 0)
        known = [(0, 0), self._dropped, *self._reads, *((began, number) for number, began in self._abandoned.items())]
        self._dropped = max((read for read in self._reads if read[0] < now - LONGEST_US), default=self._dropped)
        awaited_from = self._dropped[1]
        abandoned = {
            number: max(time for time, given_out in known if given_out <= number)
            for number in (*running, after_ended)
            if number < awaited_from
        }
        ended = [
            began
            for number, began in self._abandoned.items()
            if number not in abandoned or number == self._after_ended != after_ended
        ]
        self._abandoned, self._after_ended = abandoned, after_ended
        self._reads = [read for read in self._reads if now - LONGEST_US <= read[0]]
        self._reads.append((now, next_number))
        if is_set_back:
            return 0
        return min([self._awaited_since(now, running, after_ended, awaited_from), *ended])

    def _awaited_since(self, now: int, running: list[int], after_ended: int, awaited_from: int) -> int:
        awaited = [number for number in running if number >= awaited_from]
        oldest_running = min(awaited, default=max(after_ended, awaited_from))
        # What is not visible yet got its number after such a read.
        earlier = [n for n, (_, number) in enumerate(self._reads) if number <= oldest_running]
        if not earlier:
            # It may have begun just after the last read that was dropped. If none was dropped, it existed at the first
            # read.
            return self._dropped[0] or now - LONGEST_US
        del self._reads[: earlier[-1]]
        return self._reads[0][0]
