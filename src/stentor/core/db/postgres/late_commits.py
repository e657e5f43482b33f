"""Finds how far back a poll must read so that it misses no row that another process commits late.

A row has the time at which its transaction began, and becomes visible at the commit, which may be much later: the
transaction waits for a lock, its process is stopped, or the commit waits for a standby.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stentor.core.clock import SECOND
from stentor.core.db.sql import Sql
from stentor.core.db.transaction import Tx

LONGEST_US = 180 * SECOND
"""How long a transaction is awaited. One of another program may run for a day: the changes of that day must not be read
again at every poll, but only once, when it has ended."""
# The snapshot's xmax is the number after the last one that has ended. Larger ones may have been given out: up to the
# counter, from which `age` counts.
_SNAPSHOT = Sql(
    """select array(select cast(cast(pg_snapshot_xip(s) as text) as bigint)), cast(cast(xmax as text) as bigint),
    cast(cast(xmax as text) as bigint) + age(cast(xmax as xid))
    from (select s, pg_snapshot_xmax(s) as xmax from (select pg_current_snapshot() as s) as snapshot) as numbers"""
)


class _Read(NamedTuple):
    """A read at `time`. Transactions that got their number later have `next_number` or a larger one."""

    time: int
    next_number: int


class CommitHorizon:
    """Finds, at each read, the time from which on the next one must read. Times in microseconds of the database."""

    def __init__(self) -> None:
        self._reads: list[_Read] = []
        """Reads of the last LONGEST_US, except those that are too old to matter for any awaited transaction."""
        self._expired = _Read(0, 0)
        """The newest read before that. Transactions with smaller numbers than its `next_number` are not awaited."""
        self._abandoned: dict[int, int] = {}
        """Numbers of transactions that are not awaited and have not ended, each with a time before which it did not
        begin. `_after_ended` stands for all numbers from there on."""
        self._after_ended = 0
        """The first number after the last transaction that had ended at the last read."""

    def read(self, tx: Tx) -> tuple[int, list[int], int, int]:
        """Return what `advance` needs: the time, and the numbers that PostgreSQL has for the snapshot of `tx`."""
        running, after_ended, next_number = tx.rows(_SNAPSHOT)[0]
        return tx.now, running, after_ended, next_number

    def advance(self, now: int, running: Iterable[int], after_ended: int, next_number: int) -> int:
        """Return a time before which no transaction began that was not visible at this read.

        Running are the transactions with the numbers `running`, and perhaps those from `after_ended` to `next_number`.
        A transaction gets its number with its first write, so it may be older by the short time before that. The time
        goes back when an abandoned transaction ends, and is 0 after the clock was set back.
        """
        running = list(running)
        is_set_back = bool(self._reads) and now < self._reads[-1].time
        if is_set_back:
            self._forget_times()
        earlier = [self._expired, *self._reads, *(_Read(began, number) for number, began in self._abandoned.items())]
        self._expire_reads(now)
        self._reads.append(_Read(now, next_number))
        ended = self._update_abandoned(running, after_ended, earlier)
        since = min([self._awaited_since(now, running, after_ended), *ended])
        return 0 if is_set_back else since

    def _forget_times(self) -> None:
        # Times before the clock was set back say nothing about transactions that begin now; the numbers still do.
        self._reads = []
        self._expired = _Read(0, self._expired.next_number)
        self._abandoned = dict.fromkeys(self._abandoned, 0)

    def _expire_reads(self, now: int) -> None:
        self._expired = max((read for read in self._reads if read.time < now - LONGEST_US), default=self._expired)
        self._reads = [read for read in self._reads if read.time >= now - LONGEST_US]

    def _update_abandoned(self, running: list[int], after_ended: int, earlier: list[_Read]) -> list[int]:
        """Find the running transactions that are not awaited. Return since when those that have ended may have run."""
        previous, previous_after_ended = self._abandoned, self._after_ended
        self._after_ended = after_ended
        self._abandoned = {
            # It got its number after the newest of the reads with a `next_number` that is not larger.
            number: max((read.time for read in earlier if read.next_number <= number), default=0)
            for number in (*running, after_ended)
            if number < self._expired.next_number
        }
        return [
            began
            for number, began in previous.items()
            # Of the numbers that `after_ended` stood for, some have ended as soon as it is another one.
            if number not in self._abandoned or number == previous_after_ended != after_ended
        ]

    def _awaited_since(self, now: int, running: list[int], after_ended: int) -> int:
        """Return a time before which no awaited transaction began."""
        awaited_from = self._expired.next_number
        awaited = [number for number in running if number >= awaited_from]
        oldest = min(awaited, default=max(after_ended, awaited_from))
        before_oldest = [n for n, read in enumerate(self._reads) if read.next_number <= oldest]
        if not before_oldest:
            # It may have begun just after the newest expired read. If none has expired, it existed at the first read.
            return self._expired.time or now - LONGEST_US
        del self._reads[: before_oldest[-1]]
        return self._reads[0].time
