"""What is dear is made once for all who ask."""

from __future__ import annotations

import asyncio

import pytest

from stentor.surfaces.dashboard.site.ttl_cache import TtlCache


async def test_one_answer_serves_all_who_ask_until_it_is_old_and_a_failure_serves_nobody_else() -> None:
    now, made = [0.0], []

    async def make() -> int:
        made.append(1)
        await asyncio.sleep(0.01)
        if len(made) == 2:
            raise ValueError("out")
        return len(made)

    kept = TtlCache(5, lambda: now[0])
    assert await asyncio.gather(*(kept.get_or_create("a", make) for _ in range(5))) == [1] * 5
    assert await kept.get_or_create("a", make) == 1
    now[0] = 6
    with pytest.raises(ValueError, match="out"):
        await kept.get_or_create("a", make)
    assert await kept.get_or_create("a", make) == 3
