"""`stentor db upgrade`, `status` and `backup`, without a service and beside one."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stentor.bootstrap.storage import open_driver
from stentor.core import migrations, settings
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.errors import StartRefused
from tests import forkserver
from tests.cli.program import Program
from tests.conftest import Service
from tests.core.test_migrations import BEFORE, old, set_version
from tests.faults.load import Load, summaries
from tests.requirements import requirement

pytestmark = pytest.mark.only("sqlite", reason="upgrades and copies of the file")

SECRET = "canary-77aa"


def database(program: Program) -> SqliteDriver:
    program.data_dir.mkdir(exist_ok=True)
    return SqliteDriver(program.data_dir / "stentor.db")


@requirement("scale.upgrade-command")
def test_a_database_is_made_brought_up_to_date_and_then_left_alone(program: Program) -> None:
    empty = program("db", "status", "--json")
    assert (empty.code, empty.json["state"], empty.json["revision"]) == (1, "empty", None)
    assert len(empty.json["pending"]) == len(migrations.revisions())
    assert not program.data_dir.exists()
    made = program("db", "upgrade", "--json").json
    assert (made["before"], made["applied"][-1], made["backup"]) == (None, migrations.HEAD, None)
    again = program("db", "upgrade")
    assert (again.code, "is already" in again.out) == (0, True)
    now = program("db", "status")
    assert (now.code, migrations.HEAD in now.out, "current" in now.out) == (0, True, True)


def test_a_data_folder_that_is_a_file_is_named_as_such(program: Program) -> None:
    program.data_dir.write_text("not a folder")
    for command in ("status", "upgrade"):
        refused = program("db", command)
        assert (refused.code, "is a file, not a folder" in refused.err) == (2, True)


@requirement("scale.upgrade-command")
def test_the_upgrade_of_an_old_one_says_what_it_did_and_where_the_copy_lies(program: Program) -> None:
    old(database(program), BEFORE)
    behind = program("db", "status")
    assert (behind.code, f"{migrations.HEAD} (" in behind.out, "stentor db upgrade" in behind.err) == (1, True, True)
    done = program("db", "upgrade")
    copy = program.data_dir / f"stentor.db.before-{migrations.HEAD}"
    assert (done.code, str(copy) in done.err, migrations.HEAD in done.out) == (0, True, True)
    assert program("db", "status", "--json").json["backups"] == [str(copy)]


@requirement("scale.upgrade-command")
def test_no_copy_is_made_where_none_is_wanted(program: Program) -> None:
    old(database(program), BEFORE)
    assert program("db", "upgrade", "--no-backup", "--json").json["backup"] is None
    assert list(program.data_dir.glob("*.before-*")) == []


@requirement("scale.upgrade-switched-off")
def test_a_start_leaves_the_schema_alone_when_told_to(program: Program, serve: Callable[..., Service]) -> None:
    old(database(program), BEFORE)
    environ = {**program.env, "SERVICE_MIGRATE_ON_START": "false", "SERVICE_GATEWAY_PORT": "0"}
    done = forkserver.run_text(["serve"], environ)
    assert (done.returncode, "stentor db upgrade" in done.stderr) == (3, True)
    assert program("db", "upgrade").code == 0
    service = serve(program.data_dir, SERVICE_MIGRATE_ON_START="false")
    with service.client() as api:
        assert api.get("/api/v1/health/ready").json() == {"ready": True}


@requirement("scale.upgrade-command")
def test_a_served_folder_is_not_upgraded_under_its_service(serve: Callable[..., Service]) -> None:
    service = serve()
    program = Program(service.data_dir)
    assert program("db", "upgrade").code == 0, "there is nothing to do"
    set_version(SqliteDriver(service.data_dir / "stentor.db"), BEFORE)
    refused = program("db", "upgrade")
    assert (refused.code, f"process {service.process.pid}" in refused.err) == (3, True)


@requirement("scale.upgrade-command")
@pytest.mark.parametrize("version", ["9999", "copying-0012"])
def test_what_this_program_must_not_touch_is_refused_everywhere(program: Program, version: str) -> None:
    assert program("db", "upgrade").code == 0
    set_version(database(program), version)
    words = "install the version" if version == "9999" else "run the interrupted `stentor db copy`"
    for command in (("db", "upgrade"), ("task", "list"), ("provenance", "verify"), ("serve", "--gateway-port", "0")):
        done = program(*command)
        assert (done.code, words in done.err) == (3, True), (command, done.err)
    status = program("db", "status", "--json")
    assert (status.code, status.json["state"] in ("newer", "unfinished copy")) == (1, True)
    assert words in program("doctor").out.replace("\n", " ")


@requirement("scale.backup")
def test_a_running_service_is_copied_consistently_under_load(serve: Callable[..., Service], tmp_path: Path) -> None:
    service = serve(SERVICE_MEMORY="0")
    program = Program(service.data_dir)
    load = Load(service.address, service.key, summaries(400))
    load.start()
    for n in range(3):
        copy = tmp_path / f"copy-{n}.db"
        done = program("db", "backup", str(copy), "--json")
        assert (done.code, done.json["bytes"]) == (0, copy.stat().st_size), done.err
        verified = program("provenance", "verify", "--file", str(copy), "--json", "--verifier", verifier(service))
        assert (verified.code, verified.json["key_known"]) == (0, True), verified.out
    load.join()
    assert copy.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.glob("copy-*")) == ["copy-0.db", "copy-1.db", "copy-2.db"]


def verifier(service: Service) -> str:
    return str(service.data_dir / "keys" / "provenance.pub")


@requirement("scale.backup")
def test_a_copy_can_be_served(program: Program, serve: Callable[..., Service], tmp_path: Path) -> None:
    service = serve()
    with service.client() as api:
        agent = api.post("/api/v1/registry/agents", json={"name": "ann", "capabilities": ["echo"]}).json()["agent_id"]
        assert Program(service.data_dir)("db", "backup", str(tmp_path / "copy.db")).code == 0
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "copy.db").rename(other / "stentor.db")
    with serve(other).client() as api:
        assert api.get(f"/api/v1/registry/agents/{agent}").json()["name"] == "ann"


@requirement("scale.backup")
def test_nothing_is_overwritten_and_a_damaged_database_is_no_backup(program: Program, tmp_path: Path) -> None:
    none = program("db", "backup", str(tmp_path / "copy.db"))
    assert (none.code, "has no database" in none.err) == (4, True)
    assert program("db", "upgrade").code == 0
    (tmp_path / "there.db").write_text("mine")
    assert program("db", "backup", str(tmp_path / "there.db")).code == 2
    assert (tmp_path / "there.db").read_text() == "mine"
    lost = program("db", "backup", str(tmp_path / "no" / "folder" / "copy.db"))
    assert (lost.code, "cannot be written" in lost.err) == (3, True)
    with closing(sqlite3.connect(program.data_dir / "stentor.db")) as raw, raw:
        raw.execute("pragma journal_mode=delete")
        (page,) = raw.execute("select rootpage from sqlite_master where name = 'events_by_task'").fetchone()
    with (program.data_dir / "stentor.db").open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 4096)
    damaged = program("db", "backup", str(tmp_path / "copy.db"))
    assert (damaged.code, "damaged" in damaged.err) == (3, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "there.db"]


@requirement("scale.backup")
def test_on_postgresql_its_own_tool_is_named_and_no_password(program: Program, tmp_path: Path) -> None:
    url = f"postgresql://u:{SECRET}@127.0.0.1:1/d"
    on_server = Program(program.data_dir, {"SERVICE_DATABASE_URL": url})
    done = on_server("db", "backup", str(tmp_path / "copy.dump"))
    assert (done.code, "pg_dump --format=custom" in done.err, SECRET in done.err) == (2, True, False)
    for command in (("db", "status"), ("db", "upgrade")):
        unreachable = on_server(*command)
        assert (unreachable.code, "Connection refused" in unreachable.err) == (3, True)
        assert SECRET not in unreachable.err + unreachable.out


@requirement("scale.upgrade-command")
@pytest.mark.parametrize("url", [f"mysql://u:{SECRET}@h/d", f"postgresql:{SECRET}", f"postgresql://u:{SECRET}%@h/d"])
def test_an_address_that_is_none_is_refused_without_repeating_it(program: Program, url: str) -> None:
    for command in (("db", "status"), ("serve", "--gateway-port", "0")):
        done = Program(program.data_dir, {"SERVICE_DATABASE_URL": url})(*command)
        assert (done.code, "SERVICE_DATABASE_URL" in done.err, SECRET in done.err) == (3, True, False)


def test_whoever_means_another_database_is_not_sent_to_install_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "stentor.core.db.postgres.driver", None)
    for url, answer in (("mysql://h/d", "SERVICE_DATABASE_URL must be a URL"), ("postgresql://h/d", "needs the extra")):
        with pytest.raises(StartRefused, match=answer):
            open_driver(settings.load({"SERVICE_DATABASE_URL": url}))
