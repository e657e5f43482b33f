"""Events get their numbers: all of them, once, whatever happens in between."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from stentor.core.db import Database, Sql, Tx
from stentor.core.db.driver import Driver
from stentor.core.db.sqlite import SqliteDriver
from stentor.core.errors import RunLogDamaged, StoreUnavailable
from stentor.core.runlog import EVENT_COLUMNS, leaf_hash
from stentor.domains.provenance import merkle, store
from stentor.domains.provenance import sequencer as module
from stentor.domains.provenance.checkpoints import file_sink
from stentor.domains.provenance.signed_note import open_note, split_notes
from stentor.testing import FixedClock
from tests.databases import Databases
from tests.domains.provenance.conftest import Log
from tests.patience import soon
from tests.requirements import requirement

LEAVES = Sql("select number, event_id, hash from provenance_leaves order by number")
EVENTS = Sql(f"select {', '.join(EVENT_COLUMNS)} from events order by event_id")
MARKS = Sql("select count(*) from events_waiting")


async def numbered(db: Database) -> list[str]:
    """The events in the order of their numbers, each with the hash of its row, the tree over them and no marks left."""
    leaves = await db.read(lambda tx: tx.rows(LEAVES))
    hashes = {row[0]: leaf_hash(row) for row in await db.read(lambda tx: tx.rows(EVENTS))}
    assert [number for number, _, _ in leaves] == list(range(len(leaves)))
    assert {event_id: leaf for _, event_id, leaf in leaves} == {i: leaf.hex() for i, leaf in hashes.items()}
    root = await db.read(lambda tx: store.root_at(tx, len(leaves)))
    assert root == merkle.compute_root([hashes[event_id] for _, event_id, _ in leaves])
    assert await db.read(lambda tx: tx.rows(MARKS)) == [(0,)]
    return [event_id for _, event_id, _ in leaves]


@requirement("provenance.merkle-tree")
async def test_every_event_gets_a_number_and_its_place_in_the_tree(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_SIZE", 200)
    wanted: list[str] = []
    for count in (1, 3, 255, 1, 300, 7):
        wanted += await log.write(count, f"task {count}")
        await log.sequencer.drain()
    assert await numbered(log.db) == wanted
    assert await log.sequencer.number_batch() == 0


@requirement("provenance.merkle-tree")
async def test_an_event_that_is_committed_late_with_an_older_id_is_found(log: Log) -> None:
    await log.write(5)
    late = Sql("update events set event_id = '0' || event_id")
    await log.db.write(lambda tx: tx.run(late))
    await log.db.write(lambda tx: tx.run(Sql("update events_waiting set event_id = '0' || event_id, leaf = null")))
    newer = await log.write(2)
    await log.sequencer.drain()
    await log.db.write(lambda tx: tx.run(Sql("update events_waiting set leaf = null")))
    assert len(await numbered(log.db)) == 7
    assert (await numbered(log.db))[5:] == newer


@requirement("provenance.merkle-tree")
async def test_another_sequencer_goes_on_where_one_was_killed(log: Log) -> None:
    wanted = await log.write(300)
    await log.sequencer.drain()
    wanted += await log.write(20)
    await log.another().drain()
    wanted += await log.write(1)
    await log.sequencer.drain()  # it knows an edge that is not the last any more
    await log.sequencer.drain()
    assert await numbered(log.db) == wanted


async def test_two_sequencers_at_once_give_each_number_once(log: Log) -> None:
    other = log.another()

    async def write() -> None:
        for _ in range(20):
            await log.write(9)

    async def number(sequencer: module.Sequencer) -> None:
        for _ in range(40):
            await sequencer.run_once()

    await asyncio.gather(write(), number(log.sequencer), number(other))
    await log.sequencer.drain()
    await other.drain()
    assert len(await numbered(log.db)) == 180
    assert (log.sequencer.problem, other.problem) == (None, None)


async def test_of_two_processes_on_postgresql_one_numbers_and_the_other_takes_over(
    postgres_url: str, clock: FixedClock
) -> None:
    from stentor.core.db.postgres import PostgresDriver

    driver = PostgresDriver(postgres_url, clock)
    first, second = Log(Database(driver), clock), Log(Database(driver), clock)
    await first.write(3)
    assert await first.sequencer.number_batch() == 3
    await second.write(4)
    assert await second.sequencer.number_batch() == 0
    assert await first.sequencer.number_batch() == 4
    await second.write(2)
    await first.leader.close()
    first.db.close()
    assert await soon(second.sequencer.number_batch) == 2  # the server notices after the close that its client is gone
    assert len(await numbered(second.db)) == 9
    await second.leader.close()
    second.db.close()


@requirement("provenance.merkle-tree")
async def test_events_from_before_the_tree_get_their_numbers(log: Log) -> None:
    wanted = await log.write(10)
    await log.db.write(lambda tx: tx.run(Sql("update events_waiting set leaf = null")))
    wanted += await log.write(2)
    await log.sequencer.drain()
    assert await numbered(log.db) == wanted


def test_the_migration_marks_what_is_there(driver: Driver) -> None:
    import importlib

    script = importlib.import_module("stentor.core.migrations.versions.0008_provenance")
    assert "insert into events_waiting (event_id) select event_id from events" in script.STATEMENTS
    assert script.down_revision == "0007"


@requirement("provenance.signed-checkpoints")
async def test_a_checkpoint_is_signed_when_it_is_due_and_there_is_something_new(log: Log, clock: FixedClock) -> None:
    await log.write(3)
    await log.sequencer.run_once()
    first = await log.db.read(store.newest_checkpoint)
    assert first is not None
    assert open_note(first.note, [log.signer.verifier]).root.hex() == first.root
    assert (first.size, first.root) == (3, (await log.db.read(lambda tx: store.root_at(tx, 3))).hex())
    await log.write(1)
    await log.sequencer.run_once()
    assert await log.db.read(store.newest_checkpoint) == first
    clock.advance(seconds=61)
    await log.sequencer.run_once()
    second = await log.db.read(store.newest_checkpoint)
    assert second is not None
    assert second.size == 4
    clock.advance(seconds=61)
    await log.sequencer.run_once()
    assert await log.db.read(store.newest_checkpoint) == second


@requirement("provenance.signed-checkpoints")
async def test_checkpoints_are_appended_to_a_file_outside(log: Log, tmp_path: Path) -> None:
    path = tmp_path / "checkpoints.txt"
    log.checkpoints.sinks.append(file_sink(path))
    for _ in range(3):
        await log.write(2)
        await log.sequencer.drain()
        await log.checkpoints.publish()
    sizes = [open_note(note, [log.signer.verifier]).size for note in split_notes(path.read_text())]
    assert sizes == [2, 4, 6]
    path.unlink()
    path.mkdir()
    await log.write(1)
    await log.sequencer.drain()
    made = await log.checkpoints.publish()
    assert (made.size, log.checkpoints.delivery_problem) == (
        7,
        "the newest checkpoint was not delivered (IsADirectoryError)",
    )


DAMAGE = {
    "a leaf is gone": "delete from provenance_leaves where number = 4",
    "a tile is gone": "delete from provenance_tiles",
    "a tile is cut": "update provenance_tiles set hashes = substr(hashes, 1, 33)",
    "a mark is malformed": "update events_waiting set leaf = 'zz'",
}


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE)
async def test_a_damaged_tree_is_not_numbered_on_and_writes_go_on(log: Log, statement: str) -> None:
    await log.write(5)
    await log.sequencer.drain()
    await log.write(1)
    await log.db.write(lambda tx: tx.run(Sql(statement)))
    fresh = log.another()
    with pytest.raises(RunLogDamaged, match="provenance verify"):
        await fresh.number_batch()
    assert await fresh.run_once() == 0
    assert fresh.problem is not None
    await log.write(1)
    assert await log.db.read(lambda tx: tx.rows(MARKS)) == [(2,)]


async def test_a_tree_that_does_not_extend_its_checkpoint_is_not_signed(log: Log) -> None:
    await log.write(5)
    await log.sequencer.drain()
    await log.checkpoints.publish()
    await log.db.write(lambda tx: tx.run(Sql("update provenance_checkpoints set root = 'aa'")))
    await log.write(1)
    await log.sequencer.drain()
    with pytest.raises(RunLogDamaged, match="does not extend"):
        await log.checkpoints.publish()
    rows = await log.db.read(lambda tx: tx.rows(Sql("select size from provenance_checkpoints")))
    assert rows == [(5,)]


async def test_an_outage_is_waited_out(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = await log.write(2)

    async def out(*_: object) -> None:
        raise StoreUnavailable("The database cannot be used: injected.")

    with monkeypatch.context() as patch:
        patch.setattr(log.db, "write", out)
        assert await log.sequencer.run_once() == 0
        assert log.sequencer.problem == "The database cannot be used: injected."
    assert await log.sequencer.run_once() == 2
    assert str(log.sequencer.problem) == "None"
    assert await numbered(log.db) == wanted


async def test_the_loop_numbers_by_itself(log: Log) -> None:
    running = asyncio.create_task(log.sequencer.run())
    wanted = await log.write(3)
    await soon(log.numbered)
    running.cancel()
    assert await numbered(log.db) == wanted


async def test_the_loop_finds_what_another_process_wrote_and_outlives_a_look_that_fails(
    log: Log, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    looks: list[int] = []
    some_wait = store.has_waiting

    def failing(tx: Tx) -> bool:
        looks.append(len(looks))
        if looks[-1] % 2:
            raise RuntimeError("broken")
        return some_wait(tx)

    monkeypatch.setattr(store, "has_waiting", failing)
    running = asyncio.create_task(log.sequencer.run())
    await soon(lambda: len(looks) >= 4)
    other = Log(Database(log.db.driver), clock)
    wanted = await other.write(3)
    await soon(log.numbered)
    assert not running.done()
    running.cancel()
    assert await numbered(log.db) == wanted
    other.db.close()


async def test_an_event_is_not_written_without_its_mark(
    databases: Databases, tmp_path: Path, clock: FixedClock
) -> None:
    driver = SqliteDriver(databases.sqlite(tmp_path / "stentor.db"), clock)
    with sqlite3.connect(driver.path) as raw:
        raw.execute("drop table events_waiting")
    raw.close()
    log = Log(Database(driver), clock)
    with pytest.raises(StoreUnavailable):
        await log.write(1)
    assert await log.db.read(lambda tx: tx.rows(EVENTS)) == []
    log.db.close()
