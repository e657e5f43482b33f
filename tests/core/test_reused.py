"""A database that tests use one after another keeps nothing of the test before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stentor.core.db import Database, Sql
from stentor.core.db.driver import Driver
from stentor.testing import FixedClock
from tests.databases import Databases

INSERT = Sql("insert into departed_agents (tenant, agent_id, left_at) values ('t', 'a', 1)")
COUNT = Sql("select count(*) from departed_agents")
INDEX = Sql("create index too_much on departed_agents (left_at)")


class Opener:
    """Opens databases as the tests of one process do; `number` counts them."""

    def __init__(self, databases: Databases, kind: str, folder: Path) -> None:
        self._databases, self._kind, self._folder = databases, kind, folder
        self.number = 0

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        self.number += 1
        clock = FixedClock()
        if self._kind == "sqlite":
            with self._databases.reused_sqlite.driver(self._folder / f"{self.number}.db", clock) as driver:
                yield driver
        else:
            with self._databases.reused_postgresql() as url:
                yield self._databases.postgres_driver(url, clock)


@pytest.fixture
def opener(databases: Databases, database: str, tmp_path: Path) -> Opener:
    return Opener(databases, database, tmp_path)


def place(driver: Driver) -> object:
    """What tells one database from another."""
    path = getattr(driver, "path", None)
    return path.resolve() if isinstance(path, Path) else getattr(driver, "url", None)


async def test_rows_are_gone_and_connections_go_on(opener: Opener) -> None:
    seen = set[object]()
    for _ in range(3):
        with opener.driver() as driver:
            seen.add(place(driver))
            db = Database(driver)
            assert await db.read(lambda tx: tx.row(COUNT)) == (0,)
            await db.write(lambda tx: tx.run(INSERT))
            assert await db.read(lambda tx: tx.row(COUNT)) == (1,)
            db.close()
    assert len(seen) == 1, "one database serves tests that come after each other"


@pytest.mark.parametrize("left", ["an index", "an open connection"])
async def test_what_is_not_as_it_was_is_not_used_again(opener: Opener, left: str) -> None:
    with opener.driver() as driver:
        before, db = place(driver), Database(driver)
        if left == "an index":
            await db.write(lambda tx: tx.run(INDEX))
            db.close()
        else:
            await db.read(lambda tx: tx.row(COUNT))
    with opener.driver() as driver:
        assert place(driver) != before
        other = Database(driver)
        assert await other.read(lambda tx: tx.row(COUNT)) == (0,)
        other.close()
    db.close()
