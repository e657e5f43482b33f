"""The budget counts what was done: each part of its figures against work whose size is known."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from bench.budget import parts, shim, wal
from bench.budget.measure import CASES, Case
from bench.budget.probe import Statements, count
from bench.budget.probed import probed
from bench.llm import gateways

from stentor.core import runlog
from stentor.core.db import Sql, Tx
from stentor.core.db.sqlite.driver import SqliteConnection, SqliteDriver

INSERT = Sql("insert into events (event_id) values (:event_id)")


@pytest.fixture
def open_(tmp_path: Path) -> SqliteConnection:
    connection = SqliteDriver(tmp_path / "one.db").writer()
    connection.control("pragma wal_autocheckpoint=0")
    connection.control("create table events (event_id text primary key)")
    return connection


def test_the_wal_names_what_each_table_wrote_and_counts_the_commits(open_: SqliteConnection, tmp_path: Path) -> None:
    start = wal.size(tmp_path / "one.db")
    for n in range(3):
        open_.begin()
        open_.run(INSERT, {"event_id": str(n)})
        open_.commit()
    frames, length, commits = wal.written(tmp_path / "one.db", start)
    assert (commits, length) == (3, 4096 + 24)
    assert frames == {"events": 3, "sqlite_autoindex_events_1": 3}
    open_.close()


def test_each_statement_is_counted_for_the_part_of_its_table(open_: SqliteConnection) -> None:
    class Counted(SqliteConnection):
        pass

    statements = Statements()
    count(Counted, statements, joint=False)
    connection = Counted(open_._raw, open_._clock, open_._begin, open_._path)
    now = connection.begin()
    connection.many(INSERT, [{"event_id": "a"}, {"event_id": "b"}])
    assert Tx(connection, now).rows(Sql("select event_id from events")) == [("a",), ("b",)]
    connection.commit()
    assert statements.totals() == {
        f"{parts.RUN_LOG}|{INSERT.text}": 2,
        f"{parts.RUN_LOG}|select event_id from events": 1,
        f"{parts.TRANSACTIONS}|begin immediate": 1,
        f"{parts.TRANSACTIONS}|commit": 1,
    }
    open_.close()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("events_waiting", parts.TREE),
        ("sqlite_autoindex_events_1", parts.RUN_LOG),
        ("tasks_by_time", parts.TASKS),
        ("hebbian_weights", parts.LEARNING),
        ("webhook_deliveries", parts.WEBHOOKS),
        ("cursors", parts.OTHER),
    ],
)
def test_tables_and_indexes_belong_to_a_part(name: str, part: str) -> None:
    assert parts.of_table(name) == part


def test_a_tool_counts_for_the_part_that_calls_it() -> None:
    class Row(tuple[Any, ...]):
        __slots__ = ()

        def __iter__(self) -> Any:
            seen.append(parts.of_stack(sys._getframe()))
            return super().__iter__()

    seen: list[str] = []
    runlog.decode_event(Row((*"abcdefghij", "{}")))
    assert seen == [parts.RUN_LOG]
    frame: FrameType | None = None
    assert parts.of_stack(frame) == parts.LOOP


@pytest.mark.slow
@pytest.mark.parametrize(("case", "table"), [(CASES[1], "events"), (CASES[3], "llm_calls")], ids=["task", "chat"])
def test_a_counted_service_tells_the_work_of_each_task_and_chat(case: Case, table: str, tmp_path: Path) -> None:
    made = shim.build(tmp_path)
    with gateways.upstream() as provider, probed(tmp_path, "count", provider.port, shim=made) as one:
        start, before = wal.size(one.database), one.totals()
        calls = made.read() if made else {}
        case.send(one, 3)
        after = one.totals()
        frames, _, commits = wal.written(one.database, start)
        assert commits >= 1
        assert frames[table] >= 1
        assert any(table in key and number > before.get(key, 0) for key, number in after.items())
        if made is not None:
            spent = {name: number - calls[name] for name, number in made.read().items()}
            assert spent["fsyncs"] >= commits
            assert spent["allocations"] > 100
            assert spent["wake-ups"] >= 1


@pytest.mark.slow
def test_a_sampled_service_tells_the_processor_time_of_its_parts(tmp_path: Path) -> None:
    with gateways.upstream() as provider, probed(tmp_path, "sample", provider.port) as one:
        before = one.totals()
        CASES[1].send(one, 200)
        spent = {key: seconds - before.get(key, 0) for key, seconds in one.totals().items()}
        assert sum(spent.values()) > 0
        assert {key.partition("|")[0] for key in spent} <= {"loop", "writer", "others"}
        assert {key.partition("|")[2] for key in spent} <= set(parts.PARTS)
