"""The audit of the run log finds and names changed, removed, inserted and reordered rows."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stentor.core.db import Database
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.runlog import EVENT_COLUMNS, leaf_hash
from stentor.domains.provenance import merkle
from stentor.domains.provenance.audit.checkpoint_claims import CheckpointClaim, parse_claim
from stentor.domains.provenance.audit.findings import AuditFinding, AuditReport
from stentor.domains.provenance.audit.verification import verify_run_log
from stentor.domains.provenance.signing.signed_note import NoteVerifier, generate_signer
from stentor.testing import FixedClock
from tests.databases import Databases
from tests.domains.provenance.conftest import Log
from tests.requirements import requirement

SIGNER = generate_signer("example.com/log")
SIZES = (0, 100, 300, 560)
NUMBERED_COUNT, WAITING_COUNT = 600, 4
EVENT_AT = "(select event_id from provenance_leaves where number = {})"


@pytest.fixture(scope="module")
def intact_log(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Path:
    """600 numbered events of thirty tasks, checkpoints at SIZES, and four events that wait."""
    path = databases.sqlite(tmp_path_factory.mktemp("log") / "stentor.db")
    asyncio.run(write_log(path))
    return path


async def write_log(path: Path) -> None:
    clock = FixedClock()
    driver = SqliteDriver(path, clock)
    log = Log(Database(driver), clock, SIGNER)
    await log.checkpoints.publish()
    for task in range(30):
        await log.write(20, f"task-{task}")
        await log.sequencer.drain()
        if (task + 1) * 20 in SIZES:
            await log.checkpoints.publish()
    await log.write(WAITING_COUNT, "task-late")
    log.db.close()


def audit(
    path: Path, verifiers: list[NoteVerifier] | None = None, claims: list[CheckpointClaim] | None = None
) -> AuditReport:
    return verify_run_log(SqliteDriver(path), [SIGNER.verifier] if verifiers is None else verifiers, claims or [])


TamperStep = Callable[[sqlite3.Connection], Any]


def audit_tampered_copy(intact_log: Path, tmp_path: Path, *steps: str | TamperStep) -> AuditReport:
    """Apply the steps to a copy of the log with SQLite itself; return the audit's report."""
    copy = tmp_path / "copy.db"
    shutil.copy(intact_log, copy)
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("pragma writable_schema = on")
        connection.execute(
            "update sqlite_schema set sql = replace(sql, ' not null', '') where name in ('events', 'provenance_leaves')"
        )
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("pragma ignore_check_constraints = on")
        for step in steps:
            if callable(step):
                step(connection)
            else:
                assert connection.execute(step).rowcount != 0, step
    return audit(copy)


def findings_of(report: AuditReport, kind: str) -> list[AuditFinding]:
    return [finding for finding in report.findings if finding.kind == kind]


def event_and_task(path: Path, number: int) -> tuple[str, str]:
    """Return the event id and task id at this number of the intact log."""
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute(
            f"select event_id, task_id from events where event_id = {EVENT_AT.format(number)}"
        ).fetchone()
    return row[0], row[1]


@requirement("provenance.verify-clean")
def test_untouched_log_is_intact(intact_log: Path) -> None:
    report = audit(intact_log)
    assert (report.is_intact, report.findings) == (True, [])
    assert (report.events, report.size, report.waiting, report.covered) == (
        NUMBERED_COUNT + WAITING_COUNT,
        NUMBERED_COUNT,
        WAITING_COUNT,
        560,
    )
    assert (report.checkpoints_checked, [state.holds for state in report.checkpoints]) == (len(SIZES), [True])
    with closing(sqlite3.connect(intact_log)) as connection:
        columns = ", ".join(f"e.{column}" for column in EVENT_COLUMNS)
        rows = connection.execute(
            f"select {columns} from provenance_leaves l join events e using (event_id) order by l.number"
        ).fetchall()
    assert report.root == merkle.compute_root([leaf_hash(row) for row in rows]).hex()


VALUES: list[Any] = [None, "", "x", 0, -1, 7.5, b"x", 2**60]


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize("column", EVENT_COLUMNS)
@pytest.mark.parametrize("number", [0, 255, 256, 559, 599])
def test_changed_column_is_found_and_its_event_named(
    intact_log: Path, tmp_path: Path, column: str, number: int
) -> None:
    event_id, task_id = event_and_task(intact_log, number)
    value = {"happened_at": 5, "duration_ms": 5}.get(column, "other")
    statement = f"update events set {column} = '{value}' where event_id = '{event_id}'"
    report = audit_tampered_copy(intact_log, tmp_path, statement)
    if column == "event_id":
        (removed,) = findings_of(report, "removed")
        (inserted,) = findings_of(report, "inserted")
        assert (removed.number, removed.event_id, inserted.event_id, inserted.task_id) == (
            number,
            event_id,
            "other",
            task_id,
        )
    else:
        (changed,) = findings_of(report, "changed")
        assert (changed.number, changed.event_id) == (number, event_id)
        assert changed.task_id == ("other" if column == "task_id" else task_id)
    holds = [size for size in SIZES if size <= number]
    assert report.covered == max(holds)
    assert [state.size for state in report.checkpoints if not state.holds] == [s for s in SIZES if s > number]


@requirement("provenance.verify-finds-tampering")
def test_any_changed_value_in_any_column_is_found(intact_log: Path, tmp_path: Path) -> None:
    rng = random.Random(4)
    for column in EVENT_COLUMNS:
        for value in VALUES:
            number = rng.randrange(NUMBERED_COUNT)
            event_id, _ = event_and_task(intact_log, number)

            def edit(
                connection: sqlite3.Connection, column: str = column, value: Any = value, event_id: str = event_id
            ) -> None:
                (before,) = connection.execute(
                    f"select {column} from events where event_id = ?", (event_id,)
                ).fetchone()
                connection.execute(f"update events set {column} = ? where event_id = ?", (value, event_id))
                unchanged = connection.execute(
                    f"select 1 from events where {column} is ? and event_id = ?", (before, event_id)
                ).fetchone()
                if unchanged:  # The value was the same before.
                    connection.execute(f"update events set {column} = 'another' where event_id = ?", (event_id,))

            report = audit_tampered_copy(intact_log, tmp_path, edit)
            assert {f.number for f in report.findings if f.kind in ("changed", "removed")} == {number}, (column, value)


def test_invalid_utf8_is_found_and_does_not_stop_the_audit(intact_log: Path, tmp_path: Path) -> None:
    report = audit_tampered_copy(
        intact_log, tmp_path, f"update events set message = cast(x'ff' as text) where event_id = {EVENT_AT.format(9)}"
    )
    assert [(f.kind, f.number) for f in findings_of(report, "changed")] == [("changed", 9)]


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize("number", [0, 300, 590, 599])
def test_removed_event_is_named_with_its_task(intact_log: Path, tmp_path: Path, number: int) -> None:
    event_id, task_id = event_and_task(intact_log, number)
    report = audit_tampered_copy(intact_log, tmp_path, f"delete from events where event_id = '{event_id}'")
    (removed,) = findings_of(report, "removed")
    is_last_of_its_task = number % 20 == 19
    assert (removed.number, removed.event_id, removed.task_id) == (
        number,
        event_id,
        None if is_last_of_its_task else task_id,
    )


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize("number", [0, 300, 590, 599])
def test_event_removed_with_its_leaf_is_found_by_number(intact_log: Path, tmp_path: Path, number: int) -> None:
    event = f"delete from events where event_id = {EVENT_AT.format(number)}"
    report = audit_tampered_copy(intact_log, tmp_path, event, f"delete from provenance_leaves where number = {number}")
    (removed,) = findings_of(report, "removed")
    assert (removed.number, removed.event_id) == (number, None)


@requirement("provenance.verify-finds-tampering")
def test_removed_event_is_found_when_successors_were_renumbered(intact_log: Path, tmp_path: Path) -> None:
    report = audit_tampered_copy(
        intact_log,
        tmp_path,
        f"delete from events where event_id = {EVENT_AT.format(570)}",
        "delete from provenance_leaves where number = 570",
        "update provenance_leaves set number = -number where number > 570",
        "update provenance_leaves set number = -number - 1 where number < 0",
    )
    (removed,) = findings_of(report, "removed")
    (moved,) = findings_of(report, "reordered")
    assert (removed.number, moved.number, moved.last) == (570, 570, 598)
    assert moved.text == "it was recorded 1 later in the log"


INSERT = """insert into events (event_id, tenant, task_id, happened_at, event_type, component, message, metadata)
    values ('forged', 'default', 'task-3', 5, 'approval_given', 'tasks', 'It was approved', '{}')"""


@requirement("provenance.verify-finds-tampering")
def test_inserted_event_is_named(intact_log: Path, tmp_path: Path) -> None:
    (inserted,) = findings_of(audit_tampered_copy(intact_log, tmp_path, INSERT), "inserted")
    assert (inserted.number, inserted.event_id, inserted.task_id) == (None, "forged", "task-3")


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize("table", ["events", "provenance_leaves"])
def test_event_that_is_there_twice_is_named(intact_log: Path, tmp_path: Path, table: str) -> None:
    event_id, task_id = event_and_task(intact_log, 300)
    steps = (
        f"create table copy as select * from {table}",
        f"drop table {table}",
        f"alter table copy rename to {table}",
    )

    def double(connection: sqlite3.Connection) -> None:
        # Without its constraints: they would refuse the row.
        for step in (*steps, f"insert into {table} select * from {table} where event_id = '{event_id}'"):
            connection.execute(step)

    report = audit_tampered_copy(intact_log, tmp_path, double)
    assert [(f.kind, f.number, f.event_id, f.task_id) for f in report.findings] == [
        ("inserted", 300, event_id, task_id)
    ]


@requirement("provenance.verify-finds-tampering")
def test_event_inserted_with_a_leaf_at_the_end_is_named(intact_log: Path, tmp_path: Path) -> None:
    leaf = f"insert into provenance_leaves values ({NUMBERED_COUNT}, 'forged', '{'00' * 32}')"
    (inserted,) = findings_of(audit_tampered_copy(intact_log, tmp_path, INSERT, leaf), "inserted")
    assert (inserted.number, inserted.event_id, inserted.task_id) == (NUMBERED_COUNT, "forged", "task-3")


@requirement("provenance.verify-finds-tampering")
def test_event_inserted_in_the_middle_is_named_with_one_reorder_finding(intact_log: Path, tmp_path: Path) -> None:
    report = audit_tampered_copy(
        intact_log,
        tmp_path,
        INSERT,
        "update provenance_leaves set number = -number where number >= 565",
        "update provenance_leaves set number = -number + 1 where number < 0",
        f"insert into provenance_leaves values (565, 'forged', '{'00' * 32}')",
    )
    (inserted,) = findings_of(report, "inserted")
    (moved,) = findings_of(report, "reordered")
    assert (inserted.number, inserted.event_id, inserted.task_id) == (565, "forged", "task-3")
    assert (moved.number, moved.last, moved.text) == (566, 600, "it was recorded 1 earlier in the log")


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize(("number", "other_number"), [(10, 11), (7, 400), (570, 599)])
@pytest.mark.parametrize("columns", [("number",), ("event_id",), ("event_id", "hash")])
def test_swapped_events_are_named_with_their_distance(
    intact_log: Path, tmp_path: Path, number: int, other_number: int, columns: tuple[str, ...]
) -> None:
    def swap(connection: sqlite3.Connection) -> None:
        rows = connection.execute(
            "select * from provenance_leaves where number in (?, ?) order by number", (number, other_number)
        )
        first, second = (dict(zip(("number", "event_id", "hash"), row, strict=True)) for row in rows.fetchall())
        connection.execute("delete from provenance_leaves where number in (?, ?)", (number, other_number))
        for target, source in ((first, second), (second, first)):
            row = target | {name: source[name] for name in columns}
            connection.execute("insert into provenance_leaves values (:number, :event_id, :hash)", row)

    report = audit_tampered_copy(intact_log, tmp_path, swap)
    moved = findings_of(report, "reordered")
    ids = {event_and_task(intact_log, number)[0], event_and_task(intact_log, other_number)[0]}
    assert ({f.number for f in moved}, {f.event_id for f in moved}) == ({number, other_number}, ids)
    assert {f.text for f in moved} == {
        f"it was recorded {other_number - number} {word} in the log" for word in ("later", "earlier")
    }


@requirement("provenance.verify-finds-tampering")
def test_swapped_event_contents_are_found(intact_log: Path, tmp_path: Path) -> None:
    first_id, second_id = event_and_task(intact_log, 30)[0], event_and_task(intact_log, 31)[0]
    report = audit_tampered_copy(
        intact_log,
        tmp_path,
        f"update events set event_id = 'x' where event_id = '{first_id}'",
        f"update events set event_id = '{first_id}' where event_id = '{second_id}'",
        f"update events set event_id = '{second_id}' where event_id = 'x'",
    )
    assert [f.number for f in findings_of(report, "changed")] == [30, 31]


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize("number", [0, 256, 580, 599])
@pytest.mark.parametrize(
    ("column", "value"),
    [("number", "77777"), ("number", "-3")]
    + [(column, value) for column in ("event_id", "hash") for value in ("'zz'", "x'00'", "null", "77777", "-3", "1.5")],
)
def test_changed_leaf_is_found_and_named(
    intact_log: Path, tmp_path: Path, column: str, number: int, value: str
) -> None:
    event_id, _ = event_and_task(intact_log, number)
    report = audit_tampered_copy(
        intact_log, tmp_path, f"update provenance_leaves set {column} = {value} where number = {number}"
    )
    assert not report.is_intact
    assert any(f.number == number or f.event_id == event_id for f in report.findings), report.findings
    if column == "hash":
        assert [(f.kind, f.number, f.event_id) for f in report.findings] == [("hashes", number, event_id)]


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize("number", [5, 580])
def test_missing_leaf_is_reported_as_hash_finding_not_removed_event(
    intact_log: Path, tmp_path: Path, number: int
) -> None:
    report = audit_tampered_copy(intact_log, tmp_path, f"delete from provenance_leaves where number = {number}")
    assert [(f.kind, f.number, f.event_id) for f in report.findings] == [
        ("hashes", number, event_and_task(intact_log, number)[0])
    ]


# Not always the same byte: one hash of 256 begins with it.
OTHER_FIRST_BYTE = """cast(
    case when substr(hashes, 1, 1) = x'00' then x'01' else x'00' end || substr(hashes, 2) as blob)"""
TILES = {
    "changed leaf hash": (
        f"update provenance_tiles set hashes = {OTHER_FIRST_BYTE} where level = 0 and position = 1",
        256,
    ),
    "changed leaf hash after the last checkpoint": (
        "update provenance_tiles set "
        "hashes = cast(substr(hashes, 1, 2560) || zeroblob(32) || substr(hashes, 2593) as blob) where position = 2",
        592,
    ),
    "changed inner hash": (
        f"update provenance_tiles set hashes = {OTHER_FIRST_BYTE} where level = 1",
        0,
    ),
    "missing leaf tile": ("delete from provenance_tiles where level = 0 and position = 1", 256),
    "missing last leaf tile": ("delete from provenance_tiles where level = 0 and position = 2", 512),
    "missing inner tile": ("delete from provenance_tiles where level = 1", 0),
    "oversized tile": (
        "update provenance_tiles set hashes = cast(hashes || x'00' as blob) where level = 0 and position = 0",
        0,
    ),
    "text instead of bytes": ("update provenance_tiles set hashes = 'x' where level = 0 and position = 0", 0),
    "extra tile": ("insert into provenance_tiles values (1, 7, zeroblob(32))", 7 * 65_536),
    "tile at a wrong position": ("update provenance_tiles set position = 99 where level = 0 and position = 1", 256),
}


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize(("step", "number"), TILES.values(), ids=TILES)
def test_changed_tile_is_found(intact_log: Path, tmp_path: Path, step: str, number: int) -> None:
    report = audit_tampered_copy(intact_log, tmp_path, step)
    assert not report.is_intact
    assert report.findings[0].number == number
    assert report.covered == 560


def rebuild(connection: sqlite3.Connection) -> None:
    """Rebuild leaves and tiles over the current events, but not the signed checkpoints."""
    columns = ", ".join(f"e.{name}" for name in EVENT_COLUMNS)
    rows = connection.execute(
        f"select {columns} from provenance_leaves l join events e using (event_id) order by l.number"
    ).fetchall()
    connection.execute("delete from provenance_leaves")
    connection.execute("delete from provenance_tiles")
    hashes = [leaf_hash(row) for row in rows]
    values = ((n, row[0], leaf.hex()) for n, (row, leaf) in enumerate(zip(rows, hashes, strict=True)))
    connection.executemany("insert into provenance_leaves values (?, ?, ?)", values)
    connection.executemany("insert into provenance_tiles values (?, ?, ?)", merkle.TreeFrontier().append(hashes)[1])


@requirement("provenance.verify-finds-tampering", "provenance.signed-checkpoints")
@pytest.mark.parametrize(("number", "uncovered"), [(50, (0, 99)), (100, (100, 299)), (555, (300, 559))])
@pytest.mark.parametrize(
    "edit",
    ["update events set message = 'x' where event_id = {}", "delete from events where event_id = {}"],
    ids=["changed", "removed"],
)
def test_signed_checkpoint_finds_changes_with_rebuilt_hashes(
    intact_log: Path, tmp_path: Path, number: int, uncovered: tuple[int, int], edit: str
) -> None:
    report = audit_tampered_copy(intact_log, tmp_path, edit.format(EVENT_AT.format(number)), rebuild)
    (finding,) = findings_of(report, "checkpoint")
    assert (finding.number, finding.last, report.covered) == (*uncovered, uncovered[0])


@requirement("provenance.verify-finds-tampering")
def test_signed_checkpoint_finds_truncation_with_rebuilt_hashes(intact_log: Path, tmp_path: Path) -> None:
    cut = "delete from events where event_id in (select event_id from provenance_leaves where number >= 540)"
    report = audit_tampered_copy(intact_log, tmp_path, cut, rebuild)
    (removed,) = findings_of(report, "removed")
    assert (removed.number, removed.last, report.size, report.covered) == (540, 559, 540, 300)


def test_rebuilt_changes_after_the_last_checkpoint_are_not_found(intact_log: Path, tmp_path: Path) -> None:
    # The documentation names this limit of detection; the test confirms it.
    edit = f"update events set message = 'x' where event_id = {EVENT_AT.format(570)}"
    assert audit_tampered_copy(intact_log, tmp_path, edit, rebuild).is_intact


CHECKPOINTS = {
    "size": "update provenance_checkpoints set size = 299 where size = 300",
    "root": "update provenance_checkpoints set root = 'aa' where size = 300",
    "note": "update provenance_checkpoints set note = replace(note, '300', '301') where size = 300",
    "signature": "update provenance_checkpoints set note = substr(note, 1, length(note) - 6) || 'AAAA=' || char(10)",
    "not a note": "update provenance_checkpoints set note = x'00' where size = 300",
    "foreign note": "update provenance_checkpoints set note = (select c.note from provenance_checkpoints c "
    "where c.size = 100) where size = 300",
}


@requirement("provenance.verify-finds-tampering", "provenance.signed-checkpoints")
@pytest.mark.parametrize("step", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_changed_checkpoint_is_found(intact_log: Path, tmp_path: Path, step: str) -> None:
    report = audit_tampered_copy(intact_log, tmp_path, step)
    assert findings_of(report, "checkpoint")
    assert {f.kind for f in report.findings} == {"checkpoint"}


@requirement("provenance.signed-checkpoints")
def test_external_checkpoint_finds_deleted_checkpoints(intact_log: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(intact_log)) as connection:
        (note,) = connection.execute("select note from provenance_checkpoints where size = 560").fetchone()
    copy = tmp_path / "copy.db"
    shutil.copy(intact_log, copy)
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute(f"update events set message = 'x' where event_id = {EVENT_AT.format(400)}")
        rebuild(connection)
        connection.execute("delete from provenance_checkpoints where size > 300")
    assert audit(copy).is_intact
    report = audit(copy, claims=[parse_claim(note, [SIGNER.verifier], "kept.txt")])
    (finding,) = report.findings
    assert (finding.kind, finding.number, finding.last) == ("checkpoint", 300, 559)
    assert [(state.source, state.holds) for state in report.checkpoints][-1] == ("kept.txt", False)


def test_audit_without_a_key_checks_roots_but_not_signatures(intact_log: Path) -> None:
    report = audit(intact_log, [])
    assert (report.is_intact, report.key_known, report.checkpoints[-1].signed) == (True, False, None)
    other_key_report = audit(intact_log, [generate_signer("example.com/log").verifier])
    assert {f.kind for f in other_key_report.findings} == {"checkpoint"}


WAITING_TAMPERING = {
    "changed": ("update events set message = 'x' where task_id = 'task-late'", "changed", WAITING_COUNT),
    "removed": ("delete from events where task_id = 'task-late'", "removed", WAITING_COUNT),
    "unmarked": ("delete from events_waiting", "inserted", WAITING_COUNT),
    "all but one unmarked": (
        "update events_waiting set leaf = substr(leaf, 1, 64)",
        "inserted",
        WAITING_COUNT - 1,
    ),
    "one hash changed": (
        "update events_waiting set leaf = substr(leaf, 1, length(leaf) - 1) || 'x'",
        "changed",
        1,
    ),
    "marked again": (
        "insert into events_waiting select event_id, hash from provenance_leaves where number = 3",
        "hashes",
        1,
    ),
}


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize(("step", "kind", "count"), WAITING_TAMPERING.values(), ids=WAITING_TAMPERING)
def test_events_without_a_number_are_verified(
    intact_log: Path, tmp_path: Path, step: str, kind: str, count: int
) -> None:
    report = audit_tampered_copy(intact_log, tmp_path, step)
    assert [f.kind for f in report.findings] == [kind] * count
    assert all(f.event_id for f in report.findings)


@requirement("provenance.chains")
def test_event_with_a_missing_parent_is_named(intact_log: Path, tmp_path: Path) -> None:
    event_id, task_id = event_and_task(intact_log, 22)
    report = audit_tampered_copy(
        intact_log, tmp_path, f"delete from events where event_id = {EVENT_AT.format(21)}", rebuild
    )
    (finding,) = findings_of(report, "chain")
    assert (finding.event_id, finding.task_id) == (event_id, task_id)
    other_tenant = audit_tampered_copy(
        intact_log, tmp_path, f"update events set tenant = 'other' where event_id = {EVENT_AT.format(0)}", rebuild
    )
    assert findings_of(other_tenant, "chain")


def test_empty_log_is_intact(databases: Databases, tmp_path: Path) -> None:
    report = audit(databases.sqlite(tmp_path / "stentor.db"))
    assert (report.is_intact, report.size, report.root) == (True, 0, merkle.EMPTY_ROOT.hex())
