"""The schema's versions, on both databases."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.config import Config

from stentor.core import migrations
from stentor.core.db.driver import Driver
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.sql import Sql
from stentor.core.db.sqlite import backup
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.errors import StartRefused, StoreUnavailable
from stentor.core.migrations import runner
from tests.cli.program import Program
from tests.core import sqlite_schema
from tests.core.test_postgres import alter
from tests.requirements import requirement

BEFORE = max(number for number in migrations.revisions() if number < migrations.HEAD)
WITHOUT_INDEX = "0014"
"""The version before a step that needs the table of tasks for itself."""


def write(driver: Driver, *texts: str) -> None:
    connection = driver.writer()
    connection.begin()
    for text in texts:
        connection.run(Sql(text), {})
    connection.commit()
    connection.close()


def rows(driver: Driver, text: str) -> list[tuple[object, ...]]:
    connection = driver.reader()
    try:
        return connection.rows(Sql(text), {})
    finally:
        connection.close()


def set_version(driver: Driver, version: str) -> None:
    write(driver, f"update alembic_version set version_num = '{version}'")


def old(driver: Driver, version: str) -> None:
    """A database as an earlier program left it."""
    runner.run(driver, None, None, lambda text: None, version)
    assert migrations.current_version(driver) == version


@pytest.fixture(params=["sqlite", "postgresql"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Driver:
    """A driver of each database, where nothing is yet."""
    if request.param == "sqlite":
        return SqliteDriver(tmp_path / "stentor.db")

    return PostgresDriver(request.getfixturevalue("bare_url"))


def test_a_fresh_database_is_at_the_newest_version_and_stays_there(driver: Driver) -> None:
    assert migrations.current_version(driver) == migrations.HEAD
    assert migrations.upgrade(driver).applied == []
    assert migrations.current_version(driver) == migrations.HEAD


def test_the_newest_script_is_the_head() -> None:
    assert list(migrations.revisions())[-1] == migrations.HEAD
    assert migrations.pending_revisions(BEFORE) == [migrations.HEAD]


def test_the_script_for_new_files_is_what_the_migrations_create(tmp_path: Path) -> None:
    driver = sqlite_schema.migrate(tmp_path / "stentor.db")
    expected = migrations.SQLITE_SCHEMA.read_text(encoding="utf-8")
    assert sqlite_schema.render(driver.path) == expected, "run `python -m tests.core.sqlite_schema`"

    new = SqliteDriver(tmp_path / "new.db")
    assert migrations.upgrade(new).applied == list(migrations.revisions())
    assert sqlite_schema.render(new.path) == expected
    tables = [name for (name,) in rows(driver, "select name from sqlite_master where type = 'table'")]
    assert len(tables) > 50
    for name in tables:
        assert rows(new, f'select * from "{name}"') == rows(driver, f'select * from "{name}"')


def test_no_write_fills_a_temporary_index_for_a_constraint(tmp_path: Path) -> None:
    """SQLite does so for each `in` with three values or more, which took most of the time of a task's statements."""
    driver = sqlite_schema.migrate(tmp_path / "stentor.db")
    for (table,) in rows(driver, "select name from pragma_table_list where type = 'table' and name not like 'sqlite%'"):
        columns = rows(driver, f"select name, pk from pragma_table_info('{table}')")
        insert = f"insert into {table} values ({', '.join('null' for _ in columns)})"
        changes = ", ".join(f"{name} = 1" for name, pk in columns if not pk)
        update = f"update {table} set {changes} where {' and '.join(f'{name} = 1' for name, pk in columns if pk)}"
        for statement in (insert, update) if changes and any(pk for _, pk in columns) else (insert,):
            steps = [opcode for _, opcode, *_ in rows(driver, f"explain {statement}")]
            assert "OpenEphemeral" not in steps, statement


@requirement("scale.upgrade-keeps-rows")
def test_a_file_upgraded_in_place_refuses_what_it_refused_before(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "stentor.db")
    old(driver, "0047")
    insert = "insert into trust_changes (change_id, tenant, entity_id, kind, delta, score, cause, happened_at) values"
    write(driver, f"{insert} ('c1', 'default', 'a', 'set', 0, 50, 'c', 1)")
    migrations.upgrade(driver, notify=lambda text: None)
    write(driver, f"{insert} ('c2', 'default', 'a', 'failure', 0, 50, 'd', 1)")
    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
        write(driver, f"{insert} ('c3', 'default', 'a', 'other', 0, 50, 'e', 1)")
    assert rows(driver, "select change_id from trust_changes") == [("c1",), ("c2",)]
    assert rows(driver, "pragma integrity_check") == [("ok",)]


@requirement("scale.upgrade-keeps-rows")
def test_a_file_whose_schema_sqlite_protects_is_upgraded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SQLite of macOS does not let programs write to the table of the schema."""
    connect = runner._connect_sqlite

    def connect_protected(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        connection.set_authorizer(
            lambda action, name, value, *_: (
                sqlite3.SQLITE_IGNORE if (name, value) == ("writable_schema", "on") else sqlite3.SQLITE_OK
            )
        )
        return connection

    driver = SqliteDriver(tmp_path / "stentor.db")
    old(driver, "0047")
    monkeypatch.setattr(runner, "_connect_sqlite", connect_protected)
    assert "0048" in migrations.upgrade(driver, notify=lambda text: None).applied
    insert = "insert into trust_changes (change_id, tenant, entity_id, kind, delta, score, cause, happened_at) values"
    write(driver, f"{insert} ('c1', 'default', 'a', 'set', 0, 50, 'c', 1)")
    with pytest.raises(sqlite3.IntegrityError, match="CHECK constraint failed"):
        write(driver, f"{insert} ('c2', 'default', 'a', 'other', 0, 50, 'e', 1)")


@requirement("scale.upgrade-keeps-rows")
def test_nothing_of_a_task_is_stored_behind_its_long_texts(tmp_path: Path) -> None:
    """SQLite would read all of an input for each such value: in a list of tasks, at a heartbeat, at each step."""
    driver = SqliteDriver(tmp_path / "stentor.db")
    old(driver, "0048")
    # Later migrations change two of them.
    whole = """select type, name, sql from sqlite_master where tbl_name = 'tasks' and type <> 'table'
        and name not in ('tasks_end_waits', 'tasks_leased') order by name"""
    task = "select title, turn, input, result, error, end_by, completion_time from tasks order by task_id"
    before = rows(driver, whole)
    insert = """insert into tasks (tenant, task_id, status, type, priority, created_at, queued_at, timeout_seconds,
        epoch, attempt_epoch, provenance_id, head_id, submitted_by, submitted_status, estimated_start,
        estimated_completion, body_hash, required_capabilities, metadata, input, result, title, end_by,
        completion_time) values"""
    same = "3, 1, 1, 60, 0, 0, 'e', 'e', 'me', 'queued', 1, 1, 'h', '[]', '{}'"
    write(
        driver,
        f"{insert} ('default', 't1', 'queued', 'x', {same}, 'first input', null, 'first', 7, null)",
        f"{insert} ('default', 't2', 'completed', 'x', {same}, 'second input', 'a result', null, null, 9)",
    )
    migrations.upgrade(driver, notify=lambda text: None)
    names = [name for (name,) in rows(driver, "select name from pragma_table_info('tasks')")]
    assert names[-2:] == ["result", "input"]
    assert rows(driver, task) == [
        ("first", 0, "first input", None, None, 7, None),
        (None, 0, "second input", "a result", None, None, 9),
    ]
    assert rows(driver, whole) == before
    with pytest.raises(sqlite3.IntegrityError, match="does not make this move"):
        write(driver, "update tasks set status = 'completed', completion_time = 9 where task_id = 't1'")
    assert rows(driver, "pragma integrity_check") == [("ok",)]


def test_a_new_file_gets_all_of_the_schema_or_nothing(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "stentor.db")
    write(driver, "create table webhook_attempts (n integer)")
    with pytest.raises(StartRefused, match=r"webhook_attempts already exists.*Nothing was changed"):
        migrations.upgrade(driver)
    assert rows(driver, "select name from sqlite_master") == [("webhook_attempts",)]


def test_a_database_of_a_newer_program_is_refused(driver: Driver) -> None:
    set_version(driver, "9999")
    for migrate in (True, False):
        with pytest.raises(StartRefused, match="9999"):
            migrations.prepare_schema(driver, migrate=migrate)


def test_an_empty_database_has_no_version(driver: Driver) -> None:
    write(driver, "drop table alembic_version")
    assert migrations.current_version(driver) is None


def test_a_database_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "stentor.db").write_bytes(b"no database at all, and longer than a header is" * 9)
    for look in (migrations.current_version, migrations.upgrade):
        with pytest.raises(StoreUnavailable, match="damaged"):
            look(SqliteDriver(tmp_path / "stentor.db"))


@requirement("scale.upgrade-keeps-rows")
def test_the_rows_of_an_old_database_are_there_after_the_upgrade(bare: Driver) -> None:
    old(bare, "0007")
    event = "insert into events values ('e1', 'default', null, null, null, 1, 'agent_logged', 'x', 'hello', null, '{}')"
    write(bare, event)
    done = migrations.upgrade(bare, notify=lambda text: None)
    assert (done.previous, done.applied) == ("0007", migrations.pending_revisions("0007"))
    assert rows(bare, "select event_id, message from events") == [("e1", "hello")]
    assert rows(bare, "select event_id from events_waiting") == [("e1",)]


@requirement("scale.upgrade-keeps-rows")
def test_outcomes_that_were_stored_only_as_letters_have_rewards_after_the_upgrade(bare: Driver) -> None:
    old(bare, "0013")
    write(bare, *(f"insert into hebbian_weights values ('{name}', 't', 1, 1, 5, 'SFFS', 1)" for name in "abc"))
    old(bare, "0056")
    for name, rewards in (("b", "ff"), ("c", "fe0000cc")):
        write(bare, f"update hebbian_weights set rewards = '{rewards}' where agent_id = '{name}'")
    migrations.upgrade(bare, notify=lambda text: None)
    found = rows(bare, "select agent_id, recent, rewards from hebbian_weights order by agent_id")
    assert found == [("a", "SFFS", "ff0000ff"), ("b", "SFFS", "ff0000ff"), ("c", "SFFS", "fe0000cc")]


@requirement("scale.upgrade-whole-or-not")
def test_a_step_that_fails_undoes_those_before_it_and_says_what_to_do(bare: Driver) -> None:
    old(bare, "0008")
    write(bare, "create table rollbacks (n integer)")  # 0009 goes well, and 0010 finds its name taken
    with pytest.raises(StartRefused) as refusal:
        migrations.upgrade(bare, notify=lambda text: None)
    said = refusal.value.message
    for words in ("at version 0010 (governance)", "rollbacks", "Nothing was changed", "stentor db upgrade"):
        assert words in said
    assert "0009" not in said
    assert ("before-" in said) == (bare.name == "sqlite")
    assert migrations.current_version(bare) == "0008"
    tables = {"sqlite": "select name from sqlite_master", "postgresql": "select tablename from pg_tables"}
    assert ("webhook_attempts",) not in rows(bare, tables[bare.name])

    write(bare, "drop table rollbacks")
    assert migrations.upgrade(bare, notify=lambda text: None).applied[0] == "0009"


@requirement("scale.upgrade-whole-or-not")
def test_a_step_that_waits_too_long_for_a_table_gives_up(bare_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    driver = PostgresDriver(bare_url)
    old(driver, WITHOUT_INDEX)
    monkeypatch.setattr(runner, "LOCK_SECONDS", 0.2)
    with psycopg.connect(bare_url) as other:
        other.execute("lock table tasks in exclusive mode")
        with pytest.raises(StartRefused, match="lock timeout"):
            migrations.upgrade(driver)
    assert migrations.current_version(driver) == WITHOUT_INDEX


def test_a_database_that_is_not_empty_is_refused_with_what_a_new_installation_needs(bare_url: str) -> None:
    import psycopg

    with psycopg.connect(bare_url) as other:
        other.execute("create table tasks (number integer)")
    with pytest.raises(StartRefused, match=r"already exists.* Nothing was changed\. A new installation needs an empty"):
        migrations.upgrade(PostgresDriver(bare_url))


def test_an_upgrade_takes_the_time_that_it_needs_whatever_the_databases_defaults_are(
    bare_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    names, seen = ["statement_timeout", "idle_in_transaction_session_timeout"], list[object]()
    with psycopg.connect(bare_url) as server:
        names += ["transaction_timeout"] * (server.info.server_version >= 170_000)
    for name in names:
        alter(bare_url, f"{name} = '60s'")

    def look(config: Config, _: str) -> None:
        seen.extend(config.attributes["connection"].exec_driver_sql(f"show {name}").scalar() for name in names)

    monkeypatch.setattr(runner.command, "upgrade", look)
    runner.run(PostgresDriver(bare_url), None, None, print)
    assert seen == ["0" for _ in names]


@requirement("scale.upgrade-once")
def test_ten_that_start_at_once_upgrade_once(bare_url: str, tmp_path: Path) -> None:
    program = Program(tmp_path / "data", {"SERVICE_DATABASE_URL": bare_url})
    running = [program.start("db", "upgrade", "--json") for _ in range(10)]
    said = [process.communicate(timeout=200) for process in running]
    assert [process.returncode for process in running] == [0] * 10, said
    did = [out for out, _ in said if '"applied":[]' not in out]
    assert len(did) == 1, did
    assert program("db", "status").code == 0


@requirement("scale.upgrade-copy-first")
def test_before_an_upgrade_a_sqlite_file_is_copied_and_the_last_three_copies_stay(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "stentor.db")
    old(driver, BEFORE)
    for name in ("0001", "0002", "0003"):
        (tmp_path / f"stentor.db.before-{name}").write_text("an older copy")
    said: list[str] = []
    done = migrations.upgrade(driver, notify=said.append)
    assert done.backup == tmp_path / f"stentor.db.before-{migrations.HEAD}"
    assert done.backup is not None
    assert str(done.backup) in said[0]
    assert done.backup.stat().st_mode & 0o777 == 0o600
    assert migrations.current_version(SqliteDriver(done.backup)) == BEFORE
    assert len(backup.list_upgrade_backups(driver.path)) == 3
    assert backup.list_upgrade_backups(driver.path)[0] == done.backup
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@requirement("scale.upgrade-copy-first")
def test_what_killed_upgrades_left_of_their_copies_is_removed_by_the_next_one(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "stentor.db")
    old(driver, BEFORE)
    for name in (".stentor.db.before-0002.0badcafe", ".stentor.db.before-0003.0badcafe-journal"):
        (tmp_path / name).write_text("a part of a copy")
    migrations.upgrade(driver, notify=lambda text: None)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@requirement("scale.upgrade-copy-first")
def test_without_room_for_the_copy_nothing_is_upgraded(tmp_path: Path) -> None:
    driver = SqliteDriver(tmp_path / "stentor.db")
    old(driver, BEFORE)
    (tmp_path / f"stentor.db.before-{migrations.HEAD}").mkdir()
    with pytest.raises(StartRefused, match="Nothing was changed"):
        migrations.upgrade(driver)
    assert migrations.current_version(driver) == BEFORE
    assert migrations.upgrade(driver, make_backup=False).applied == [migrations.HEAD]


@requirement("scale.upgrade-copy-first")
def test_a_damaged_file_is_not_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "stentor.db"
    old(SqliteDriver(path), BEFORE)
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("pragma journal_mode=delete")
        (page,) = raw.execute("select rootpage from sqlite_master where name = 'events_by_task'").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    with pytest.raises(StartRefused, match=r"damaged .* restore a backup"):
        migrations.upgrade(SqliteDriver(path))


@pytest.mark.parametrize("missing", [1, 4096, 100_000])
def test_a_file_that_was_cut_off_stops_the_start_until_the_whole_one_is_back(tmp_path: Path, missing: int) -> None:
    path = tmp_path / "stentor.db"
    driver = SqliteDriver(path)
    migrations.prepare_schema(driver, migrate=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-missing])
    cut = f"is cut off: it has {len(whole) - missing} of {len(whole)} bytes.*restore a backup"
    for migrate in (True, False):
        with pytest.raises(StartRefused, match=cut):
            migrations.prepare_schema(driver, migrate=migrate)
    path.write_bytes(whole)
    # An open connection has its newest pages in the file beside it alone.
    connection = driver.writer()
    connection.begin()
    connection.run(Sql("create table another (x text)"), {})
    connection.commit()
    migrations.prepare_schema(driver, migrate=False)
    connection.close()
    migrations.prepare_schema(driver, migrate=False)


@requirement("scale.upgrade-switched-off")
def test_with_the_setting_off_a_schema_that_is_behind_stops_the_start(bare: Driver) -> None:
    for version in ("none", BEFORE):
        with pytest.raises(StartRefused, match=f"schema {version}.*SERVICE_MIGRATE_ON_START.*stentor db upgrade"):
            migrations.prepare_schema(bare, migrate=False)
        old(bare, BEFORE)
    migrations.prepare_schema(bare, migrate=True)
    migrations.prepare_schema(bare, migrate=False)
