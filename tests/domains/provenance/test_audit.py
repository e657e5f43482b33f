"""Whatever is changed, removed, inserted or reordered behind the service's back is found and named."""

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
from stentor.core.db.sqlite import SqliteDriver
from stentor.core.runlog import EVENT_COLUMNS, leaf_hash
from stentor.domains.provenance import merkle
from stentor.domains.provenance.audit.checkpoint_claims import CheckpointClaim, parse_claim
from stentor.domains.provenance.audit.findings import AuditFinding, AuditReport
from stentor.domains.provenance.audit.verification import verify_run_log
from stentor.domains.provenance.signed_note import NoteVerifier, generate_signer
from stentor.testing import FixedClock
from tests.databases import Databases
from tests.domains.provenance.conftest import Log
from tests.requirements import requirement

SIGNER = generate_signer("example.com/log")
SIZES = (0, 100, 300, 560)
NUMBERED, WAITING = 600, 4
EVENT = "(select event_id from provenance_leaves where number = {})"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Path:
    """600 numbered events of thirty tasks, checkpoints at SIZES, and four events that wait."""
    path = databases.sqlite(tmp_path_factory.mktemp("log") / "stentor.db")
    asyncio.run(fill(path))
    return path


async def fill(path: Path) -> None:
    clock = FixedClock()
    driver = SqliteDriver(path, clock)
    log = Log(Database(driver), clock, SIGNER)
    await log.checkpoints.publish()
    for task in range(30):
        await log.write(20, f"task-{task}")
        await log.sequencer.drain()
        if (task + 1) * 20 in SIZES:
            await log.checkpoints.publish()
    await log.write(WAITING, "task-late")
    log.db.close()


def judge(
    path: Path, verifiers: list[NoteVerifier] | None = None, outside: list[CheckpointClaim] | None = None
) -> AuditReport:
    return verify_run_log(SqliteDriver(path), [SIGNER.verifier] if verifiers is None else verifiers, outside or [])


Tamper = Callable[[sqlite3.Connection], Any]


def tampered(sound: Path, tmp_path: Path, *steps: str | Tamper) -> AuditReport:
    """The report on a copy that somebody edited with SQLite itself."""
    copy = tmp_path / "copy.db"
    shutil.copy(sound, copy)
    with closing(sqlite3.connect(copy)) as raw, raw:
        raw.execute("pragma writable_schema = on")
        raw.execute(
            "update sqlite_schema set sql = replace(sql, ' not null', '') where name in ('events', 'provenance_leaves')"
        )
    with closing(sqlite3.connect(copy)) as raw, raw:
        raw.execute("pragma ignore_check_constraints = on")
        for step in steps:
            if callable(step):
                step(raw)
            else:
                assert raw.execute(step).rowcount != 0, step
    return judge(copy)


def found(report: AuditReport, kind: str) -> list[AuditFinding]:
    return [finding for finding in report.findings if finding.kind == kind]


def named(path: Path, number: int) -> tuple[str, str]:
    """Event id and task of a number in the untouched log."""
    with closing(sqlite3.connect(path)) as raw:
        row = raw.execute(f"select event_id, task_id from events where event_id = {EVENT.format(number)}").fetchone()
    return row[0], row[1]


@requirement("provenance.verify-clean")
def test_an_untouched_log_is_intact(sound: Path) -> None:
    report = judge(sound)
    assert (report.is_intact, report.findings) == (True, [])
    assert (report.events, report.size, report.waiting, report.covered) == (NUMBERED + WAITING, NUMBERED, WAITING, 560)
    assert (report.checkpoints_checked, [state.holds for state in report.checkpoints]) == (len(SIZES), [True])
    with closing(sqlite3.connect(sound)) as raw:
        columns = ", ".join(f"e.{column}" for column in EVENT_COLUMNS)
        rows = raw.execute(
            f"select {columns} from provenance_leaves l join events e using (event_id) order by l.number"
        ).fetchall()
    assert report.root == merkle.compute_root([leaf_hash(row) for row in rows]).hex()


VALUES: list[Any] = [None, "", "x", 0, -1, 7.5, b"x", 2**60]


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize("column", EVENT_COLUMNS)
@pytest.mark.parametrize("number", [0, 255, 256, 559, 599])
def test_a_change_of_any_column_is_found_and_its_event_named(
    sound: Path, tmp_path: Path, column: str, number: int
) -> None:
    event_id, task_id = named(sound, number)
    value = {"happened_at": 5, "duration_ms": 5}.get(column, "other")
    step = f"update events set {column} = '{value}' where event_id = '{event_id}'"
    report = tampered(sound, tmp_path, step)
    if column == "event_id":
        (gone,) = found(report, "removed")
        (stranger,) = found(report, "inserted")
        assert (gone.number, gone.event_id, stranger.event_id, stranger.task_id) == (number, event_id, "other", task_id)
    else:
        (changed,) = found(report, "changed")
        assert (changed.number, changed.event_id) == (number, event_id)
        assert changed.task_id == ("other" if column == "task_id" else task_id)
    holds = [size for size in SIZES if size <= number]
    assert report.covered == max(holds)
    assert [state.size for state in report.checkpoints if not state.holds] == [s for s in SIZES if s > number]


@requirement("provenance.verify-finds-tampering")
def test_any_value_of_any_type_in_any_column_is_found(sound: Path, tmp_path: Path) -> None:
    chance = random.Random(4)
    for column in EVENT_COLUMNS:
        for value in VALUES:
            number = chance.randrange(NUMBERED)
            event_id, _ = named(sound, number)

            def edit(raw: sqlite3.Connection, column: str = column, value: Any = value, at: str = event_id) -> None:
                (before,) = raw.execute(f"select {column} from events where event_id = ?", (at,)).fetchone()
                raw.execute(f"update events set {column} = ? where event_id = ?", (value, at))
                still = raw.execute(
                    f"select 1 from events where {column} is ? and event_id = ?", (before, at)
                ).fetchone()
                if still:  # it was that before
                    raw.execute(f"update events set {column} = 'another' where event_id = ?", (at,))

            report = tampered(sound, tmp_path, edit)
            assert {f.number for f in report.findings if f.kind in ("changed", "removed")} == {number}, (column, value)


def test_bytes_that_are_no_text_are_found_and_do_not_end_the_verification(sound: Path, tmp_path: Path) -> None:
    report = tampered(
        sound, tmp_path, f"update events set message = cast(x'ff' as text) where event_id = {EVENT.format(9)}"
    )
    assert [(f.kind, f.number) for f in found(report, "changed")] == [("changed", 9)]


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize("number", [0, 300, 590, 599])
def test_a_removed_event_is_named_with_its_task(sound: Path, tmp_path: Path, number: int) -> None:
    event_id, task_id = named(sound, number)
    report = tampered(sound, tmp_path, f"delete from events where event_id = '{event_id}'")
    (gone,) = found(report, "removed")
    last_of_its_task = number % 20 == 19
    assert (gone.number, gone.event_id, gone.task_id) == (number, event_id, None if last_of_its_task else task_id)


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize("number", [0, 300, 590, 599])
def test_an_event_that_was_removed_with_its_leaf_is_known_by_its_number(
    sound: Path, tmp_path: Path, number: int
) -> None:
    event = f"delete from events where event_id = {EVENT.format(number)}"
    report = tampered(sound, tmp_path, event, f"delete from provenance_leaves where number = {number}")
    (gone,) = found(report, "removed")
    assert (gone.number, gone.event_id) == (number, None)


@requirement("provenance.verify-finds-tampering")
def test_a_removed_event_whose_successors_closed_the_gap_is_known(sound: Path, tmp_path: Path) -> None:
    report = tampered(
        sound,
        tmp_path,
        f"delete from events where event_id = {EVENT.format(570)}",
        "delete from provenance_leaves where number = 570",
        "update provenance_leaves set number = -number where number > 570",
        "update provenance_leaves set number = -number - 1 where number < 0",
    )
    (gone,) = found(report, "removed")
    (moved,) = found(report, "reordered")
    assert (gone.number, moved.number, moved.last) == (570, 570, 598)
    assert moved.text == "it was recorded 1 later in the log"


INSERT = """insert into events (event_id, tenant, task_id, happened_at, event_type, component, message, metadata)
    values ('forged', 'default', 'task-3', 5, 'approval_given', 'tasks', 'It was approved', '{}')"""


@requirement("provenance.verify-finds-tampering")
def test_an_inserted_event_is_named(sound: Path, tmp_path: Path) -> None:
    (stranger,) = found(tampered(sound, tmp_path, INSERT), "inserted")
    assert (stranger.number, stranger.event_id, stranger.task_id) == (None, "forged", "task-3")


@requirement("provenance.verify-finds-tampering")
def test_an_event_that_was_inserted_with_a_leaf_at_the_end_is_named(sound: Path, tmp_path: Path) -> None:
    leaf = f"insert into provenance_leaves values ({NUMBERED}, 'forged', '{'00' * 32}')"
    (stranger,) = found(tampered(sound, tmp_path, INSERT, leaf), "inserted")
    assert (stranger.number, stranger.event_id, stranger.task_id) == (NUMBERED, "forged", "task-3")


@requirement("provenance.verify-finds-tampering")
def test_an_event_that_was_inserted_in_the_middle_is_named_and_its_successors_as_one(
    sound: Path, tmp_path: Path
) -> None:
    report = tampered(
        sound,
        tmp_path,
        INSERT,
        "update provenance_leaves set number = -number where number >= 565",
        "update provenance_leaves set number = -number + 1 where number < 0",
        f"insert into provenance_leaves values (565, 'forged', '{'00' * 32}')",
    )
    (stranger,) = found(report, "inserted")
    (moved,) = found(report, "reordered")
    assert (stranger.number, stranger.event_id, stranger.task_id) == (565, "forged", "task-3")
    assert (moved.number, moved.last, moved.text) == (566, 600, "it was recorded 1 earlier in the log")


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize(("one", "other"), [(10, 11), (7, 400), (570, 599)])
@pytest.mark.parametrize("columns", [("number",), ("event_id",), ("event_id", "hash")])
def test_events_that_were_exchanged_are_named_with_their_right_places(
    sound: Path, tmp_path: Path, one: int, other: int, columns: tuple[str, ...]
) -> None:
    def exchange(raw: sqlite3.Connection) -> None:
        rows = raw.execute("select * from provenance_leaves where number in (?, ?) order by number", (one, other))
        first, second = (dict(zip(("number", "event_id", "hash"), row, strict=True)) for row in rows.fetchall())
        raw.execute("delete from provenance_leaves where number in (?, ?)", (one, other))
        for mine, theirs in ((first, second), (second, first)):
            row = mine | {name: theirs[name] for name in columns}
            raw.execute("insert into provenance_leaves values (:number, :event_id, :hash)", row)

    report = tampered(sound, tmp_path, exchange)
    moved = found(report, "reordered")
    ids = {named(sound, one)[0], named(sound, other)[0]}
    assert ({f.number for f in moved}, {f.event_id for f in moved}) == ({one, other}, ids)
    assert {f.text for f in moved} == {
        f"it was recorded {other - one} {word} in the log" for word in ("later", "earlier")
    }


@requirement("provenance.verify-finds-tampering")
def test_contents_that_were_exchanged_between_two_events_are_found(sound: Path, tmp_path: Path) -> None:
    one, other = named(sound, 30)[0], named(sound, 31)[0]
    report = tampered(
        sound,
        tmp_path,
        f"update events set event_id = 'x' where event_id = '{one}'",
        f"update events set event_id = '{one}' where event_id = '{other}'",
        f"update events set event_id = '{other}' where event_id = 'x'",
    )
    assert [f.number for f in found(report, "changed")] == [30, 31]


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize("number", [0, 256, 580, 599])
@pytest.mark.parametrize(
    ("column", "value"),
    [("number", "77777"), ("number", "-3")]
    + [(column, value) for column in ("event_id", "hash") for value in ("'zz'", "x'00'", "null", "77777", "-3", "1.5")],
)
def test_a_change_of_the_leaf_table_is_found_and_its_number_or_event_named(
    sound: Path, tmp_path: Path, column: str, number: int, value: str
) -> None:
    event_id, _ = named(sound, number)
    report = tampered(sound, tmp_path, f"update provenance_leaves set {column} = {value} where number = {number}")
    assert not report.is_intact
    assert any(f.number == number or f.event_id == event_id for f in report.findings), report.findings
    if column == "hash":
        assert [(f.kind, f.number, f.event_id) for f in report.findings] == [("hashes", number, event_id)]


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize("number", [5, 580])
def test_a_leaf_that_is_gone_is_told_from_an_event_that_is_gone(sound: Path, tmp_path: Path, number: int) -> None:
    report = tampered(sound, tmp_path, f"delete from provenance_leaves where number = {number}")
    assert [(f.kind, f.number, f.event_id) for f in report.findings] == [("hashes", number, named(sound, number)[0])]


TILES = {
    "a hash of a leaf": (
        "update provenance_tiles set hashes = cast(x'00' || substr(hashes, 2) as blob) "
        "where level = 0 and position = 1",
        256,
    ),
    "a hash of a leaf after the last checkpoint": (
        "update provenance_tiles set "
        "hashes = cast(substr(hashes, 1, 2560) || zeroblob(32) || substr(hashes, 2593) as blob) where position = 2",
        592,
    ),
    "a hash above": (
        "update provenance_tiles set hashes = cast(x'00' || substr(hashes, 2) as blob) where level = 1",
        0,
    ),
    "a tile of leaves": ("delete from provenance_tiles where level = 0 and position = 1", 256),
    "the last tile of leaves": ("delete from provenance_tiles where level = 0 and position = 2", 512),
    "a tile above": ("delete from provenance_tiles where level = 1", 0),
    "a longer tile": (
        "update provenance_tiles set hashes = cast(hashes || x'00' as blob) where level = 0 and position = 0",
        0,
    ),
    "a tile of text": ("update provenance_tiles set hashes = 'x' where level = 0 and position = 0", 0),
    "a tile too many": ("insert into provenance_tiles values (1, 7, zeroblob(32))", 7 * 65_536),
    "a tile at a place of its own": ("update provenance_tiles set position = 99 where level = 0 and position = 1", 256),
}


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize(("step", "number"), TILES.values(), ids=TILES)
def test_a_change_of_the_tiles_is_found(sound: Path, tmp_path: Path, step: str, number: int) -> None:
    report = tampered(sound, tmp_path, step)
    assert not report.is_intact
    assert report.findings[0].number == number
    assert report.covered == 560


def rebuild(raw: sqlite3.Connection) -> None:
    """Everything made anew over the events as they are now, but for the signed checkpoints."""
    columns = ", ".join(f"e.{name}" for name in EVENT_COLUMNS)
    rows = raw.execute(
        f"select {columns} from provenance_leaves l join events e using (event_id) order by l.number"
    ).fetchall()
    raw.execute("delete from provenance_leaves")
    raw.execute("delete from provenance_tiles")
    hashes = [leaf_hash(row) for row in rows]
    values = ((n, row[0], leaf.hex()) for n, (row, leaf) in enumerate(zip(rows, hashes, strict=True)))
    raw.executemany("insert into provenance_leaves values (?, ?, ?)", values)
    raw.executemany("insert into provenance_tiles values (?, ?, ?)", merkle.TreeFrontier().append(hashes)[1])


@requirement("provenance.verify-finds-tampering", "provenance.signed-checkpoints")
@pytest.mark.parametrize(("number", "between"), [(50, (0, 99)), (100, (100, 299)), (555, (300, 559))])
@pytest.mark.parametrize(
    "edit",
    ["update events set message = 'x' where event_id = {}", "delete from events where event_id = {}"],
    ids=["changed", "removed"],
)
def test_what_was_changed_with_all_its_hashes_is_found_by_the_signed_checkpoint(
    sound: Path, tmp_path: Path, number: int, between: tuple[int, int], edit: str
) -> None:
    report = tampered(sound, tmp_path, edit.format(EVENT.format(number)), rebuild)
    (finding,) = found(report, "checkpoint")
    assert (finding.number, finding.last, report.covered) == (*between, between[0])


@requirement("provenance.verify-finds-tampering")
def test_the_last_rows_that_were_cut_off_with_all_their_hashes_are_found_by_the_checkpoint(
    sound: Path, tmp_path: Path
) -> None:
    cut = "delete from events where event_id in (select event_id from provenance_leaves where number >= 540)"
    report = tampered(sound, tmp_path, cut, rebuild)
    (gone,) = found(report, "removed")
    assert (gone.number, gone.last, report.size, report.covered) == (540, 559, 540, 300)


def test_rows_newer_than_the_last_checkpoint_that_were_changed_with_all_their_hashes_are_not_found(
    sound: Path, tmp_path: Path
) -> None:
    # What cannot be found: the documentation says so, and this holds it to that.
    edit = f"update events set message = 'x' where event_id = {EVENT.format(570)}"
    assert tampered(sound, tmp_path, edit, rebuild).is_intact


CHECKPOINTS = {
    "size": "update provenance_checkpoints set size = 299 where size = 300",
    "root": "update provenance_checkpoints set root = 'aa' where size = 300",
    "note": "update provenance_checkpoints set note = replace(note, '300', '301') where size = 300",
    "signature": "update provenance_checkpoints set note = substr(note, 1, length(note) - 6) || 'AAAA=' || char(10)",
    "nonsense": "update provenance_checkpoints set note = x'00' where size = 300",
    "another's note": "update provenance_checkpoints set note = (select c.note from provenance_checkpoints c "
    "where c.size = 100) where size = 300",
}


@requirement("provenance.verify-finds-tampering", "provenance.signed-checkpoints")
@pytest.mark.parametrize("step", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_a_changed_checkpoint_is_found(sound: Path, tmp_path: Path, step: str) -> None:
    report = tampered(sound, tmp_path, step)
    assert found(report, "checkpoint")
    assert {f.kind for f in report.findings} == {"checkpoint"}


@requirement("provenance.signed-checkpoints")
def test_a_checkpoint_that_was_kept_elsewhere_finds_what_was_deleted_here(sound: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(sound)) as raw:
        (note,) = raw.execute("select note from provenance_checkpoints where size = 560").fetchone()
    copy = tmp_path / "copy.db"
    shutil.copy(sound, copy)
    with closing(sqlite3.connect(copy)) as raw, raw:
        raw.execute(f"update events set message = 'x' where event_id = {EVENT.format(400)}")
        rebuild(raw)
        raw.execute("delete from provenance_checkpoints where size > 300")
    assert judge(copy).is_intact
    report = judge(copy, outside=[parse_claim(note, [SIGNER.verifier], "kept.txt")])
    (finding,) = report.findings
    assert (finding.kind, finding.number, finding.last) == ("checkpoint", 300, 559)
    assert [(state.source, state.holds) for state in report.checkpoints][-1] == ("kept.txt", False)


def test_without_a_key_roots_are_held_against_the_events_and_signatures_are_not(sound: Path) -> None:
    report = judge(sound, [])
    assert (report.is_intact, report.key_known, report.checkpoints[-1].signed) == (True, False, None)
    stranger = judge(sound, [generate_signer("example.com/log").verifier])
    assert {f.kind for f in stranger.findings} == {"checkpoint"}


WAITS = {
    "changed": ("update events set message = 'x' where task_id = 'task-late'", "changed", WAITING),
    "removed": ("delete from events where task_id = 'task-late'", "removed", WAITING),
    "unmarked": ("delete from events_waiting", "inserted", WAITING),
    "marked again": (
        "insert into events_waiting select event_id, hash from provenance_leaves where number = 3",
        "hashes",
        1,
    ),
}


@requirement("provenance.verify-finds-tampering")
@pytest.mark.parametrize(("step", "kind", "count"), WAITS.values(), ids=WAITS)
def test_what_has_no_number_yet_is_verified_too(sound: Path, tmp_path: Path, step: str, kind: str, count: int) -> None:
    report = tampered(sound, tmp_path, step)
    assert [f.kind for f in report.findings] == [kind] * count
    assert all(f.event_id for f in report.findings)


@requirement("provenance.chains")
def test_a_chain_that_has_lost_its_link_is_named(sound: Path, tmp_path: Path) -> None:
    event_id, task_id = named(sound, 22)
    report = tampered(sound, tmp_path, f"delete from events where event_id = {EVENT.format(21)}", rebuild)
    (orphan,) = found(report, "chain")
    assert (orphan.event_id, orphan.task_id) == (event_id, task_id)
    other = tampered(sound, tmp_path, f"update events set tenant = 'other' where event_id = {EVENT.format(0)}", rebuild)
    assert found(other, "chain")


def test_an_empty_log_is_intact(databases: Databases, tmp_path: Path) -> None:
    report = judge(databases.sqlite(tmp_path / "stentor.db"))
    assert (report.is_intact, report.size, report.root) == (True, 0, merkle.EMPTY_ROOT.hex())
