"""Reads before a refusal: shared by all that wait, and limited."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from stentor.core.db.polling import BURST, CatchUp
from stentor.core.errors import StoreUnavailable


async def test_a_process_alone_reads_nothing() -> None:
    assert await CatchUp()() is False


async def test_requests_share_a_read_but_none_that_began_before_them() -> None:
    catch_up, ends = CatchUp(), [asyncio.Event(), asyncio.Event()]
    began: list[int] = []

    async def read() -> None:
        began.append(len(began))
        await ends[began[-1]].wait()

    catch_up.read = read
    first = [asyncio.create_task(catch_up())]
    while not began:
        await asyncio.sleep(0)
    later = [asyncio.create_task(catch_up()) for _ in range(5)]
    await asyncio.sleep(0)
    assert began == [0]
    ends[0].set()
    ends[1].set()
    assert await asyncio.gather(*first, *later) == [True] * 6
    assert began == [0, 1]


async def test_reads_are_limited_to_a_few_in_a_row_and_then_one_a_second() -> None:
    now, reads = [0.0], list[None]()
    catch_up = CatchUp(lambda: now[0])

    async def read() -> None:
        reads.append(None)

    catch_up.read = read
    assert [await catch_up() for _ in range(BURST + 2)] == [True] * BURST + [False] * 2
    now[0] += 1
    assert [await catch_up() for _ in range(2)] == [True, False]
    assert len(reads) == BURST + 1


@pytest.mark.parametrize("error", [StoreUnavailable("down"), ValueError("damaged")])
async def test_a_read_that_fails_fails_no_request(error: Exception) -> None:
    catch_up, reported = CatchUp(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def read() -> None:
        raise error

    catch_up.read = read
    assert await catch_up() is True
    # The loop reports the error of a task that nobody read when the task is collected.
    gc.collect()
    assert not reported
