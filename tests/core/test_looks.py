"""Looks that share a transaction, and the pulse that brings them together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stentor.core import timers
from stentor.core.db import Tx
from stentor.core.db.polling import PollBatch, ReadFunction
from stentor.core.db.sql import Sql
from stentor.core.errors import StoreUnavailable
from tests.conftest import World

MISSING = Sql("select * from no_such_table")


class Reads:
    """Counts transactions; what cannot be read fails the whole one, as on PostgreSQL."""

    def __init__(self) -> None:
        self.number = 0

    async def read(self, fn: ReadFunction) -> Any:
        self.number += 1
        return fn(None)  # pyrefly: ignore[bad-argument-type] - these functions use no transaction


def gone(tx: Tx) -> Any:
    raise StoreUnavailable("The table is gone.")


async def test_those_who_look_at_the_same_pulse_share_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads()
    now = asyncio.get_running_loop().time()
    looks = PollBatch(reads.read)

    async def looking(answer: int) -> int:
        await timers.sleep_until_tick(0.05)
        return int(await looks.poll(lambda tx: answer))

    async def waiting(answer: int) -> int:
        await timers.wait_until_tick(asyncio.Event(), 0.05)
        return int(await looks.poll(lambda tx: answer))

    with monkeypatch.context() as patch:
        # They begin to wait at one moment: with a clock that goes on, a beat can lie between two of them.
        patch.setattr(asyncio.get_running_loop(), "time", lambda: now)
        those = [asyncio.ensure_future(poll) for poll in (looking(1), waiting(2), looking(3))]
        await asyncio.sleep(0)
    assert await asyncio.gather(*those) == [1, 2, 3]
    assert reads.number == 1
    assert await looking(4) == 4
    assert reads.number == 2


async def test_one_that_cannot_be_read_takes_down_no_other() -> None:
    looks = PollBatch(Reads().read)
    every: list[ReadFunction] = [lambda tx: 1, gone, lambda tx: 2]
    found = await asyncio.gather(*map(looks.poll, every), return_exceptions=True)
    assert (found[0], found[2]) == (1, 2)
    assert isinstance(found[1], StoreUnavailable)


async def test_who_leaves_before_the_answer_hinders_nobody() -> None:
    looks = PollBatch(Reads().read)
    left = asyncio.ensure_future(looks.poll(lambda tx: 1))
    stays = asyncio.ensure_future(looks.poll(lambda tx: 2))
    await asyncio.sleep(0)
    left.cancel()
    assert await stays == 2


async def test_an_event_ends_the_wait_for_the_pulse() -> None:
    event = asyncio.Event()
    event.set()
    async with asyncio.timeout(60):
        await timers.wait_until_tick(event, 6_000)


async def test_a_timer_that_fires_a_little_early_does_not_make_a_pulse_beat_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    early = 1_000 - timers._PHASE - 0.0005
    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "time", lambda: early)
        rest = timers.seconds_until_tick(0.1)
    assert rest == pytest.approx(0.1005)


async def test_a_table_that_is_gone_takes_down_no_other_look(world: World) -> None:
    db = world.kernel.infra.db
    number, broken, other = await asyncio.gather(
        db.poll(lambda tx: 7), db.poll(lambda tx: tx.rows(MISSING)), db.poll(lambda tx: 8), return_exceptions=True
    )
    assert (number, other) == (7, 8)
    assert isinstance(broken, Exception)
