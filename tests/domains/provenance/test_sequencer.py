"""The sequencer numbers every event exactly once, across restarts, races and outages."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from stentor.core.db import Database, Sql, Tx
from stentor.core.db.driver import Driver
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.errors import RunLogDamaged, ServiceUnavailable, StoreUnavailable
from stentor.core.fanout.live import Hub
from stentor.core.runlog import ENTRY_EVENTS, EVENT_COLUMNS, EventDraft, RunLog, leaf_hash
from stentor.domains.provenance import merkle, store
from stentor.domains.provenance import sequencer as sequencer_module
from stentor.domains.provenance import service as service_module
from stentor.domains.provenance.audit.verification import verify_run_log
from stentor.domains.provenance.service import MAX_EVENTS, ProvenanceService
from stentor.domains.provenance.signing.checkpoints import file_sink
from stentor.domains.provenance.signing.signed_note import open_note, split_notes
from stentor.testing import FixedClock
from tests.databases import Databases
from tests.domains.provenance.conftest import Log
from tests.patience import soon
from tests.requirements import requirement

LEAVES = Sql("select number, event_id, hash from provenance_leaves order by number")
EVENTS = Sql(f"select {', '.join(EVENT_COLUMNS)} from events order by event_id")
WAITING_COUNT = Sql("select count(*) from events_waiting")
DELETE_WAITING = Sql("delete from events_waiting")
ADD_WITHOUT_HASH = Sql(
    """insert into events_waiting (event_id)
    select event_id from events where event_id not in (select event_id from provenance_leaves)"""
)


async def forget_hashes(log: Log) -> None:
    """Give the events without a number pending entries without a hash, as those from before the tree have."""
    await log.db.write(lambda tx: (tx.run(DELETE_WAITING), tx.run(ADD_WITHOUT_HASH)))


async def check_numbering(db: Database) -> list[str]:
    """Check leaves, hashes, root and that no event waits; return the event ids in the order of their numbers."""
    leaves = await db.read(lambda tx: tx.rows(LEAVES))
    hashes = {row[0]: leaf_hash(row) for row in await db.read(lambda tx: tx.rows(EVENTS))}
    assert [number for number, _, _ in leaves] == list(range(len(leaves)))
    assert {event_id: leaf for _, event_id, leaf in leaves} == {i: leaf.hex() for i, leaf in hashes.items()}
    root = await db.read(lambda tx: store.root_at(tx, len(leaves)))
    assert root == merkle.compute_root([hashes[event_id] for _, event_id, _ in leaves])
    assert await db.read(lambda tx: tx.rows(WAITING_COUNT)) == [(0,)]
    return [event_id for _, event_id, _ in leaves]


@requirement("provenance.merkle-tree")
async def test_every_event_gets_a_number_and_a_leaf(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencer_module, "BATCH_SIZE", 200)
    expected: list[str] = []
    for count in (1, 3, 255, 1, 300, 7):
        expected += await log.write(count, f"task {count}")
        await log.sequencer.drain()
    assert await check_numbering(log.db) == expected
    assert await log.sequencer.number_batch() == 0


@requirement("provenance.merkle-tree")
async def test_late_commit_with_an_older_id_is_numbered(log: Log) -> None:
    await log.write(5)
    age_ids = Sql("update events set event_id = '0' || event_id")
    await log.db.write(lambda tx: tx.run(age_ids))
    await forget_hashes(log)
    newer = await log.write(2)
    await log.sequencer.drain()
    assert len(await check_numbering(log.db)) == 7
    assert (await check_numbering(log.db))[5:] == newer


@requirement("provenance.merkle-tree")
async def test_another_sequencer_continues_after_a_kill(log: Log) -> None:
    expected = await log.write(300)
    await log.sequencer.drain()
    expected += await log.write(20)
    await log.new_sequencer().drain()
    expected += await log.write(1)
    await log.sequencer.drain()  # Its cached frontier is outdated.
    await log.sequencer.drain()
    assert await check_numbering(log.db) == expected


async def test_concurrent_sequencers_assign_each_number_once(log: Log) -> None:
    other = log.new_sequencer()

    async def write() -> None:
        for _ in range(20):
            await log.write(9)

    async def number(sequencer: sequencer_module.Sequencer) -> None:
        for _ in range(40):
            await sequencer.run_once()

    await asyncio.gather(write(), number(log.sequencer), number(other))
    await log.sequencer.drain()
    await other.drain()
    assert len(await check_numbering(log.db)) == 180
    assert (log.sequencer.problem, other.problem) == (None, None)


async def test_second_process_on_postgresql_takes_over_numbering(postgres_url: str, clock: FixedClock) -> None:
    from stentor.core.db.postgres.driver import PostgresDriver

    first, second = (Log(Database(PostgresDriver(postgres_url, clock)), clock) for _ in range(2))
    await first.write(3)
    assert await first.sequencer.number_batch() == 3
    await second.write(4)
    assert await second.sequencer.number_batch() == 0
    assert await first.sequencer.number_batch() == 4
    await second.write(2)
    await first.leader.close()
    first.db.close()
    assert await soon(second.sequencer.number_batch) == 2  # The server releases the lock some time after the close.
    assert len(await check_numbering(second.db)) == 9
    await second.leader.close()
    second.db.close()


@requirement("provenance.signed-on-request")
async def test_a_signature_on_request_waits_until_the_leader_has_numbered(
    postgres_url: str, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stentor.core.db.postgres.driver import PostgresDriver

    first, second = (Log(Database(PostgresDriver(postgres_url, clock)), clock) for _ in range(2))
    assert await first.sequencer.number_batch() == 0  # leads
    await second.write(4)
    service = ProvenanceService(second.db, second.sequencer, second.checkpoints)
    monkeypatch.setattr(service_module, "LEADER_WAIT_SECONDS", 0.01)
    with pytest.raises(ServiceUnavailable, match="Another process numbers the events"):
        await service.publish()
    await second.sequencer.drain()  # as at a stop, which waits for nobody
    monkeypatch.setattr(service_module, "LEADER_WAIT_SECONDS", 200)
    waiting = asyncio.create_task(service.publish())
    await first.sequencer.drain()
    assert (await waiting).size == 4
    for log in (first, second):
        await log.leader.close()
        log.db.close()


@requirement("provenance.signed-on-request")
async def test_numbering_on_request_ends_although_events_go_on_being_written(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequencer_module, "BATCH_SIZE", 2)
    numbered: list[int] = []
    number = log.sequencer.number_batch

    async def number_and_write() -> int:
        numbered.append(await number())
        for _ in range(2 if len(numbered) < 20 else 0):
            await log.write(1)
        return numbered[-1]

    monkeypatch.setattr(log.sequencer, "number_batch", number_and_write)
    for _ in range(5):
        await log.write(1)
    await log.sequencer.drain()
    assert numbered == [2, 2, 2]


@requirement("provenance.merkle-tree")
async def test_the_events_of_a_commit_wait_in_few_entries(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencer_module, "BATCH_SIZE", 2)
    long = await log.write(2 * ENTRY_EVENTS + 1, "a long chain")
    runlog, drafts = RunLog(Hub()), [EventDraft("tool_called", "test", f"number {n}") for n in range(ENTRY_EVENTS)]

    def append_each(tx: Tx) -> None:
        for draft in drafts:
            runlog.append(tx, "default", [draft])

    await log.db.write(append_each)
    assert await log.db.read(lambda tx: tx.rows(WAITING_COUNT)) == [(4,)]
    assert (await log.db.read(store.numbering_lag)).events == 3 * ENTRY_EVENTS + 1
    assert verify_run_log(log.db.driver, [], []).waiting == 3 * ENTRY_EVENTS + 1
    # No checkpoint of a part while more are pending.
    assert (await log.sequencer.run_once(), await log.db.read(store.newest_checkpoint)) == (2 * ENTRY_EVENTS, None)
    await log.sequencer.drain()
    assert await check_numbering(log.db) == [*long, *(draft.event_id for draft in drafts)]
    assert verify_run_log(log.db.driver, [], []).is_intact


@requirement("provenance.merkle-tree")
async def test_events_without_a_stored_hash_are_numbered(log: Log) -> None:
    expected = await log.write(10)
    await forget_hashes(log)
    expected += await log.write(2)
    await log.sequencer.drain()
    assert await check_numbering(log.db) == expected


def test_migration_queues_existing_events(driver: Driver) -> None:
    import importlib

    script = importlib.import_module("stentor.core.migrations.versions.0008_provenance")
    assert "insert into events_waiting (event_id) select event_id from events" in script.STATEMENTS
    assert script.down_revision == "0007"


@requirement("provenance.signed-checkpoints")
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_checkpoints_go_on_when_a_clock_that_was_ahead_is_set_right(
    log: Log, clock: FixedClock, is_restarted: bool
) -> None:
    clock.jump(3_600)
    await log.write(1)
    await log.sequencer.run_once()
    clock.jump(-3_600)
    await log.write(1)
    await (log.new_sequencer() if is_restarted else log.sequencer).run_once()
    newest = await log.db.read(store.newest_checkpoint)
    assert newest is not None
    assert newest.size == 2


@requirement("provenance.signed-checkpoints")
async def test_checkpoint_is_signed_when_due_and_events_are_new(log: Log, clock: FixedClock) -> None:
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
async def test_checkpoints_are_appended_to_an_external_file(log: Log, tmp_path: Path) -> None:
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
    checkpoint = await log.checkpoints.publish()
    assert (checkpoint.size, log.checkpoints.delivery_problem) == (
        7,
        "the newest checkpoint was not delivered (IsADirectoryError)",
    )


DAMAGE = {
    "missing leaf": "delete from provenance_leaves where number = 4",
    "missing tile": "delete from provenance_tiles",
    "truncated tile": "update provenance_tiles set hashes = substr(hashes, 1, 33)",
    "malformed waiting hash": "update events_waiting set leaf = 'zz'",
}


@pytest.mark.parametrize("statement", DAMAGE.values(), ids=DAMAGE)
async def test_damaged_tree_stops_numbering_but_not_writes(log: Log, statement: str) -> None:
    await log.write(5)
    await log.sequencer.drain()
    await log.write(1)
    await log.db.write(lambda tx: tx.run(Sql(statement)))
    restarted = log.new_sequencer()
    with pytest.raises(RunLogDamaged, match="provenance verify"):
        await restarted.number_batch()
    assert await restarted.run_once() == 0
    assert restarted.problem is not None
    await log.write(1)
    assert await log.db.read(lambda tx: tx.rows(WAITING_COUNT)) == [(2,)]


async def test_tree_that_does_not_extend_its_checkpoint_is_not_signed(log: Log) -> None:
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


async def test_numbering_resumes_after_a_database_outage(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = await log.write(2)

    async def fail(*_: object) -> None:
        raise StoreUnavailable("The database cannot be used: injected.")

    with monkeypatch.context() as patch:
        patch.setattr(log.db, "write", fail)
        assert await log.sequencer.run_once() == 0
        assert log.sequencer.problem == "The database cannot be used: injected."
    assert await log.sequencer.run_once() == 2
    assert str(log.sequencer.problem) == "None"
    assert await check_numbering(log.db) == expected


async def test_background_loop_numbers_new_events(log: Log) -> None:
    running = asyncio.create_task(log.sequencer.run())
    expected = await log.write(3)
    await soon(log.is_numbered)
    running.cancel()
    assert await check_numbering(log.db) == expected


async def test_background_loop_polls_for_foreign_events_and_survives_errors(
    log: Log, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequencer_module, "POLL_SECONDS", 0.02)
    polls: list[int] = []
    original = store.has_waiting

    def fail_every_second_poll(tx: Tx) -> bool:
        polls.append(len(polls))
        if polls[-1] % 2:
            raise RuntimeError("broken")
        return original(tx)

    monkeypatch.setattr(store, "has_waiting", fail_every_second_poll)
    running = asyncio.create_task(log.sequencer.run())
    await soon(lambda: len(polls) >= 4)
    other = Log(Database(log.db.driver), clock)
    expected = await other.write(3)
    await soon(log.is_numbered)
    assert not running.done()
    running.cancel()
    assert await check_numbering(log.db) == expected
    other.db.close()


async def test_event_is_not_written_without_its_waiting_row(
    databases: Databases, tmp_path: Path, clock: FixedClock
) -> None:
    driver = SqliteDriver(databases.sqlite(tmp_path / "stentor.db"), clock)
    with sqlite3.connect(driver.path) as connection:
        connection.execute("drop table events_waiting")
    connection.close()
    log = Log(Database(driver), clock)
    with pytest.raises(StoreUnavailable):
        await log.write(1)
    assert await log.db.read(lambda tx: tx.rows(EVENTS)) == []
    log.db.close()


@requirement("provenance.run-tree")
async def test_a_run_that_is_too_long_is_shown_from_its_beginning_on(log: Log) -> None:
    service = ProvenanceService(log.db, log.sequencer, log.checkpoints)
    (root,) = await log.write(1)
    ids = [root, *await log.write(600, parent=root), *await log.write(600, parent=root)]
    run = await service.read_run("default", root, lambda *_: True)
    assert [event.event_id for event in run.events] == ids[:MAX_EVENTS]
    assert run.truncated
