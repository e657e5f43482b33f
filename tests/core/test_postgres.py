"""PostgreSQL: a connection that breaks is opened anew."""

from __future__ import annotations

import psycopg
import pytest

from stentor.core.db import Database, Sql
from stentor.core.db.postgres import PostgresDriver
from stentor.core.errors import StoreUnavailable

WHO = Sql("select pg_backend_pid()")


async def test_a_broken_connection_fails_its_work_and_the_next_one_is_new(postgres_url: str) -> None:
    database = Database(PostgresDriver(postgres_url))
    for call in (database.write, database.read):
        first = await call(lambda tx: tx.row(WHO))
        assert first is not None
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute("select pg_terminate_backend(%s)", first)
        with pytest.raises(StoreUnavailable):
            await call(lambda tx: tx.row(WHO))
        assert await call(lambda tx: tx.row(WHO)) != first
    database.close()


async def test_the_servers_own_time_is_the_stores_time(postgres_url: str) -> None:
    database = Database(PostgresDriver(postgres_url))
    sql = Sql("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
    now, asked = await database.write(lambda tx: (tx.now, tx.row(sql)))
    assert asked is not None
    assert 0 <= asked[0] - now < 60_000_000
    database.close()


def test_an_address_where_nobody_listens_is_an_outage() -> None:
    with pytest.raises(StoreUnavailable):
        PostgresDriver("postgresql://nobody@127.0.0.1:1/none").writer()
