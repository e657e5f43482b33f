"""`stentor db copy`: a folder that a service filled goes to PostgreSQL and back, and what may go wrong on the way."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from stentor.domains.llm.contents.model import compress
from tests import forkserver
from tests.cli.populated import ENVIRON, NOTE, Filled, fill, post, stop, until_delivered, work_off
from tests.cli.program import Done, Program
from tests.conftest import Service, serving
from tests.faults.checker import check
from tests.faults.test_full_disk import fill as fill_disk
from tests.faults.test_full_disk import small_disk
from tests.faults.test_webhooks import Sink, receiving
from tests.patience import until
from tests.requirements import requirement

pytestmark = pytest.mark.only("sqlite", reason="what is copied is named by each test")

__all__ = ["small_disk"]  # a fixture
PASSWORD = "canary-p%2Fss-77aa"
PLAIN = "canary-p/ss-77aa"
KEEP_CONTENT = """insert into llm_contents
    select call_id, tenant, key_name, ?, null, 0, 0, happened_at from llm_calls"""
WAITING = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
Serve = Callable[..., Service]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Filled once; tests take copies of it."""
    folder = tmp_path_factory.mktemp("original")
    with serving(folder) as start:
        return fill(start(**ENVIRON))


@pytest.fixture
def filled(original: Filled, tmp_path: Path) -> Filled:
    shutil.copytree(original.folder, tmp_path / "data")
    return Filled(tmp_path / "data", original.agent, original.waiting, original.done, original.secret)


@pytest.fixture
def program(filled: Filled) -> Program:
    return Program(filled.folder)


def with_password(url: str) -> str:
    """The address with a password that must not be seen; the server of the tests asks for none."""
    head, rest = url.split("://", 1)
    who, rest = rest.split("@", 1)
    return f"{head}://{who.split(':')[0]}:{PASSWORD}@{rest}"


def source(filled: Filled) -> str:
    return f"sqlite:///{filled.folder}/stentor.db"


def copied(program: Program, one: str, other: str) -> dict[str, Any]:
    done = program("db", "copy", one, other, "--json")
    assert done.code == 0, done.err + done.out
    return dict(done.json)


def refused(done: Done, *words: str, code: int = 3) -> str:
    """The error, which repeats no password."""
    assert done.code == code, done.out + done.err
    for word in words:
        assert word in done.err, done.err
    hidden(done)
    return done.err


def hidden(done: Done) -> None:
    assert PASSWORD not in done.out + done.err
    assert PLAIN not in done.out + done.err


def changed(path: Path, *statements: str) -> None:
    """Edit a database behind the service's back."""
    with closing(sqlite3.connect(path)) as raw, raw:
        for statement in statements:
            raw.execute(statement)


@requirement("scale.copy-whole", "memory.invalid-everywhere")
def test_a_filled_folder_goes_to_postgresql_and_two_instances_go_on_with_it(
    filled: Filled, program: Program, bare_url: str, serve: Serve, tmp_path: Path
) -> None:
    with sqlite3.connect(filled.folder / "stentor.db") as store:
        store.execute(KEEP_CONTENT, (compress(b'"kept"'),))
    moved = copied(program, source(filled), with_password(bare_url))
    assert PLAIN not in json.dumps(moved)
    assert {Path(one["path"]).name for one in moved["to_move"]} == {"keys", "vault"}
    log = moved["run_log"]
    assert (log["intact"], log["key_known"], log["events"] > 40) == (True, True, True)
    rows = {table["table"]: table["rows"] for table in moved["tables"]}
    assert (rows["tasks"], rows["checkpoints"], rows["webhook_subscriptions"], rows["llm_spent"]) == (11, 1, 1, 1)
    assert rows["llm_contents"] == 1
    assert rows["memory_versions"] >= 1
    assert check(bare_url, filled.done, filled.waiting) == []

    other = tmp_path / "other"
    shutil.copytree(filled.folder / "keys", other / "keys")
    vault = {"SERVICE_VAULT_DIR": str(filled.folder / "vault"), "SERVICE_DATABASE_URL": bare_url}
    with receiving() as sink:
        changed_address(bare_url, sink.url)
        one, two = serve(**ENVIRON, **vault), serve(other, **ENVIRON, **vault)
        with one.client() as first, two.client() as second:
            assert work_off(first, filled.agent, 5) == set(filled.waiting)
            for task_id in filled.waiting:
                assert second.get(f"/api/v1/tasks/{task_id}").json()["status"] == "completed"
            read = second.get("/api/v1/memory/read/exact", params={"path": NOTE}).json()
            assert "harbour" in read["document"]["content"]
            until(lambda: found_notes(first, "harbour") == [NOTE])
            assert found_notes(second, "lighthouse") == []
            assert second.get("/api/v1/llm/usage").json()["data"]["totalRequests"] == 1
            (call,) = second.get("/api/v1/llm/calls").json()["calls"]
            assert second.get(f"/api/v1/llm/calls/{call['call_id']}").json()["request"] == '"kept"'
            assert post(second, "/tasks", type="echo", input=1, required_capabilities=["echo"])["status"] == "queued"
            until_delivered(sink, 5)
    verified_signatures(sink, filled.secret)
    stop(one)
    stop(two)
    on_server = Program(filled.folder, {"SERVICE_DATABASE_URL": bare_url})
    found = on_server("provenance", "verify", "--json")
    assert (found.code, found.json["intact"], found.json["key_known"]) == (0, True, True)
    assert found.json["events"] > log["events"]


def found_notes(api: httpx.Client, term: str) -> list[str]:
    return [match["path"] for match in post(api, "/memory/search/keyword", terms=[term])["matches"]]


def changed_address(url: str, address: str) -> None:
    """The receiver of the test listens at another port than the one that was subscribed."""
    with psycopg.connect(url, autocommit=True) as admin:
        assert admin.execute("update webhook_subscriptions set url = %s", (address,)).rowcount == 1


def verified_signatures(sink: Sink, secret: str) -> None:
    """The secret was sealed with the key of the old folder; deliveries are signed with it after the move."""
    from standardwebhooks import Webhook

    assert sink.asked
    for asked in sink.asked:
        Webhook(secret).verify(asked.body, asked.headers)


@requirement("scale.copy-whole")
def test_it_goes_back_to_sqlite_with_what_was_done_meanwhile(
    filled: Filled, program: Program, bare_url: str, serve: Serve, tmp_path: Path
) -> None:
    there = copied(program, source(filled), bare_url)
    service = serve(**ENVIRON, SERVICE_DATABASE_URL=bare_url)
    with service.client() as api:
        work_off(api, filled.agent, 5)
    stop(service)
    home = tmp_path / "home"
    back = copied(program, with_password(bare_url), f"sqlite:///{home}/stentor.db")
    assert back["run_log"]["intact"] is True
    assert back["rows"] > there["rows"]
    assert check(home / "stentor.db", filled.done + filled.waiting) == []
    shutil.copytree(filled.folder / "keys", home / "keys")
    shutil.copytree(filled.folder / "vault", home / "vault")
    again = serve(home, **ENVIRON)
    with again.client() as api:
        assert api.get(f"/api/v1/tasks/{filled.waiting[0]}").json()["result"] == "heard"
        post(api, "/tasks", type="echo", input=1, required_capabilities=["echo"])
        work_off(api, filled.agent, 1)


@requirement("scale.copy-whole")
def test_the_digests_of_both_ways_are_the_same(filled: Filled, program: Program, bare_url: str, tmp_path: Path) -> None:
    there = copied(program, source(filled), bare_url)
    back = copied(program, bare_url, f"sqlite:///{tmp_path}/home/stentor.db")
    assert {t["table"]: t for t in there["tables"]} == {t["table"]: t for t in back["tables"]}


@requirement("scale.copy-whole", "tasks.fairness")
def test_the_queued_tasks_of_submitters_take_turns_after_the_copy(
    filled: Filled, program: Program, bare_url: str, tmp_path: Path
) -> None:
    """On SQLite the turns of tasks are not stored."""
    *backlog, single = filled.waiting
    changed(filled.folder / "stentor.db", f"update tasks set submitted_by = 'other' where task_id = '{single}'")
    copied(program, source(filled), bare_url)
    with psycopg.connect(bare_url, autocommit=True) as server:
        order = server.execute("select task_id from tasks where status = 'queued' order by priority, turn, queued_at")
        assert [task_id for (task_id,) in order] == [backlog[0], single, *backlog[1:]]
        server.execute("update tasks set turn = turn + 7 where status = 'queued'")
    copied(program, bare_url, f"sqlite:///{tmp_path}/home/stentor.db")


@requirement("scale.copy-alone")
def test_a_folder_that_is_served_is_not_copied(filled: Filled, bare_url: str, serve: Serve) -> None:
    service = serve(**ENVIRON)
    done = Program(filled.folder)("db", "copy", source(filled), with_password(bare_url))
    refused(done, f"is in use by process {service.process.pid}", "Stop that process")


@requirement("scale.copy-alone")
def test_a_database_on_the_server_that_is_served_is_neither_copied_nor_filled(
    filled: Filled, program: Program, bare_url: str, serve: Serve, tmp_path: Path
) -> None:
    serve(tmp_path / "other", **ENVIRON, SERVICE_DATABASE_URL=bare_url, SERVICE_BUILTIN_AGENTS="0")
    into = program("db", "copy", source(filled), with_password(bare_url))
    refused(into, "is in use (stentor", "Stop that process")
    out_of = program("db", "copy", with_password(bare_url), f"sqlite:///{tmp_path}/home/stentor.db")
    refused(out_of, "is in use (stentor")
    assert not (tmp_path / "home" / "stentor.db").exists()


@contextmanager
def held_up(url: str, *statements: str) -> Iterator[psycopg.Connection[Any]]:
    """A session whose open transaction the copy has to wait for."""
    with psycopg.connect(url) as session:
        for statement in statements:
            session.execute(statement.encode())
        yield session
        session.rollback()


def until_waiting(url: str, process: forkserver.Process | subprocess.Popen[str]) -> None:
    """Until some session waits for another one's lock."""
    with psycopg.connect(url, autocommit=True) as admin:
        until(lambda: process.poll() is not None or admin.execute(WAITING).fetchone())
    assert process.poll() is None, process.communicate()


def start_refused(program: Program, url: str = "") -> str:
    """What a start says that is refused."""
    environ = {**program.env, "SERVICE_DATABASE_URL": url, "SERVICE_GATEWAY_PORT": "0", **ENVIRON}
    done = forkserver.run_text(["serve"], environ)
    assert done.returncode == 3, done.stdout + done.stderr
    return done.stderr


@pytest.mark.fault
@requirement("scale.copy-interrupted")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_after_an_interruption_nothing_starts_on_half_of_the_data(
    filled: Filled, program: Program, bare_url: str, number: int
) -> None:
    assert Program(filled.folder, {"SERVICE_DATABASE_URL": bare_url})("db", "upgrade").code == 0
    # The task is inserted elsewhere and not committed, so the copy waits in the middle of its table.
    insert = """insert into task_counts (tenant, hour, status, agent_id, n)
        values ('default', -1, 'completed', %r, 1)"""
    with held_up(bare_url, insert % filled.agent):
        process = program.start("db", "copy", source(filled), with_password(bare_url))
        until_waiting(bare_url, process)
        process.send_signal(number)
        _, said = process.communicate(timeout=200)
    assert PLAIN not in said
    assert number == signal.SIGKILL or "run the same command again" in " ".join(said.split())
    assert "stentor db copy" in start_refused(program, bare_url)
    on_server = Program(filled.folder, {"SERVICE_DATABASE_URL": bare_url})
    state = on_server("db", "status", "--json")
    assert (state.code, state.json["state"]) == (1, "unfinished copy")
    assert "stentor db copy" in on_server("db", "upgrade").err
    assert "stentor db copy" in on_server("provenance", "verify").err

    assert copied(program, source(filled), bare_url)["run_log"]["intact"] is True
    assert check(bare_url, filled.done, filled.waiting) == []
    assert on_server("db", "status").code == 0


@pytest.mark.fault
@requirement("scale.copy-interrupted")
def test_half_a_copy_into_a_file_is_not_served_either(
    filled: Filled, program: Program, bare_url: str, tmp_path: Path
) -> None:
    copied(program, source(filled), bare_url)
    home = tmp_path / "home"
    target = f"sqlite:///{home}/stentor.db"
    with held_up(bare_url, "lock table tasks in access exclusive mode"):
        process = program.start("db", "copy", bare_url, target)
        until_waiting(bare_url, process)
        process.kill()
        process.communicate()
    assert "stentor db copy" in start_refused(Program(home))
    assert copied(program, bare_url, target)["run_log"]["intact"] is True
    assert check(home / "stentor.db", filled.done, filled.waiting) == []


@requirement("scale.copy-alone")
def test_two_copies_into_one_database_do_not_meet(filled: Filled, program: Program, bare_url: str) -> None:
    Program(filled.folder, {"SERVICE_DATABASE_URL": bare_url})("db", "upgrade")
    with held_up(bare_url, "lock table tasks in share mode"):
        process = program.start("db", "copy", source(filled), bare_url)
        until_waiting(bare_url, process)
        other = filled.folder.parent / "second"
        shutil.copytree(filled.folder, other)
        second = program("db", "copy", f"sqlite:///{other}/stentor.db", with_password(bare_url))
        refused(second, "is in use (stentor db copy")
        # Nor does a service come in between.
        assert "stentor db copy" in start_refused(program, bare_url)
    assert process.wait(200) == 0
    process.communicate()


@requirement("scale.copy-refusals")
def test_a_target_with_rows_is_not_touched(filled: Filled, program: Program, bare_url: str) -> None:
    copied(program, source(filled), bare_url)
    with psycopg.connect(bare_url, autocommit=True) as admin:
        before = admin.execute("select count(*) from events").fetchone()
        refused(
            program("db", "copy", source(filled), with_password(bare_url)),
            "is not empty",
            "new, empty database",
        )
        assert admin.execute("select count(*) from events").fetchone() == before
    assert Program(filled.folder, {"SERVICE_DATABASE_URL": bare_url})("db", "status").code == 0


@requirement("scale.copy-refusals")
def test_a_damaged_source_is_found_before_anything_begins(filled: Filled, program: Program, bare_url: str) -> None:
    path = filled.folder / "stentor.db"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 8192)
    refused(program("db", "copy", source(filled), with_password(bare_url)), "is damaged", "restore a backup")
    with psycopg.connect(bare_url) as admin:
        assert admin.execute("select to_regclass('tasks')").fetchone() == (None,)


@requirement("scale.copy-refusals")
@pytest.mark.parametrize("instead", ["create table other (name text)", "create view people as select 'eve' as name"])
def test_a_source_without_one_of_the_tables_is_not_copied(
    filled: Filled, program: Program, bare_url: str, instead: str
) -> None:
    changed(filled.folder / "stentor.db", "drop table people", instead)
    refused(program("db", "copy", source(filled), bare_url), "has no table people")


UNFIT = {
    "update agents set status_reason = 'a' || char(0) || 'canary'": "agents.status_reason contains the character NUL",
    "update tasks set epoch = 3000000000": "tasks.epoch is not between -2147483648 and 2147483647",
    "update agents set status_reason = cast(x'ff63616e617279' as text)": "agents.status_reason is not valid UTF-8",
    "update tasks set created_at = 'canary'": "tasks.created_at is not an integer",
    "update trust_changes set delta = 'canary'": "trust_changes.delta is not a number",
    "update memory_versions set content = 'canary'": "memory_versions.content is not bytes",
}


@requirement("scale.copy-refusals")
def test_a_value_that_postgresql_cannot_hold_is_named_and_never_bent(
    filled: Filled, program: Program, bare_url: str
) -> None:
    sound = (filled.folder / "stentor.db").read_bytes()
    for statement, words in UNFIT.items():
        changed(filled.folder / "stentor.db", statement)
        done = program("db", "copy", source(filled), with_password(bare_url))
        assert "canary" not in refused(done, words, "in the row where")
        (filled.folder / "stentor.db").write_bytes(sound)
    assert "stentor db copy" in start_refused(program, bare_url)


@requirement("scale.copy-refusals")
def test_a_row_that_points_nowhere_is_refused_by_its_rule(filled: Filled, program: Program, bare_url: str) -> None:
    row = "insert into violations values ('v1', 'nobody', 'x', '{}', 1, null)"
    changed(filled.folder / "stentor.db", row)
    refused(
        program("db", "copy", source(filled), with_password(bare_url)),
        "PostgreSQL rejected a row",
        "violations",
    )


@requirement("scale.copy-verified")
def test_a_log_that_was_tampered_with_is_copied_as_it_is_and_said_to_be(
    filled: Filled, program: Program, bare_url: str
) -> None:
    changed(filled.folder / "stentor.db", "update events set message = 'I did not' where event_type = 'task_completed'")
    done = program("db", "copy", source(filled), bare_url, "--json")
    assert done.code == 1
    assert done.json["run_log"]["intact"] is False
    assert {finding["kind"] for finding in done.json["run_log"]["findings"]} == {"changed"}
    assert Program(filled.folder, {"SERVICE_DATABASE_URL": bare_url})("db", "status").code == 0


@requirement("scale.copy-verified")
def test_people_read_what_came_over_and_what_is_left_to_do(filled: Filled, program: Program, bare_url: str) -> None:
    done = program("db", "copy", source(filled), with_password(bare_url))
    assert done.code == 0, done.err
    hidden(done)
    for words in (
        "events",
        "The run log is intact.",
        f"{filled.folder}/keys",
        f"{filled.folder}/vault",
        "SERVICE_DATABASE_URL",
    ):
        assert words in done.out


@requirement("scale.copy-refusals")
@pytest.mark.parametrize(
    ("one", "other", "words", "code"),
    [
        ("mysql://u:canary-p%2Fss-77aa@h/d", "sqlite:///x.db", "SOURCE must begin with", 2),
        ("sqlite://data/stentor.db", "postgresql://h/d", "SOURCE must name a file", 2),
        ("sqlite:///a.db", "sqlite:///b.db", "stentor db backup", 2),
        ("postgresql://h/a", "postgresql://h/b", "pg_dump", 2),
        ("sqlite:///none.db", "postgresql://u:canary-p%2Fss-77aa@127.0.0.1:1/d", "There is no file none.db", 3),
        ("postgresql://u:canary-p%2Fss-77aa@127.0.0.1:1/d", "sqlite:///x/stentor.db", "Connection refused", 3),
        ("postgresql://u:canary-p%2Fss-77aa@nowhere.invalid/d", "sqlite:///x/stentor.db", "nowhere.invalid", 3),
        ("postgresql://u:canary-p%ss-77aa@127.0.0.1/d", "sqlite:///x/stentor.db", "write it as %25", 2),
        ("postgresql://u:canary-p@ss-77aa@127.0.0.1:1/d", "sqlite:///x/stentor.db", "write it as %40", 2),
        ("postgresql://u:canary-p/ss-77aa@127.0.0.1:1/d", "sqlite:///x/stentor.db", "write / as %2F", 2),
        ("postgresql://u:77/ss-77aa@127.0.0.1:1/d", "sqlite:///x/stentor.db", "write / as %2F", 2),
        ("postgresql://u:77#ss-77aa@127.0.0.1:1/d", "sqlite:///x/stentor.db", "# as %23", 2),
        (
            "postgresql://u:canary-p%2Fss-77aa@127.0.0.1:x/d",
            "sqlite:///x/stentor.db",
            "SOURCE has a port that is not a number",
            2,
        ),
        ("postgresql:u:canary-p%2Fss-77aa", "sqlite:///x/stentor.db", "SOURCE must be a URL", 2),
        ("postgresql://u:canary-p%2Fss-77aa@127.0.0.1/d?nonsense=1", "sqlite:///x/stentor.db", "nonsense", 3),
    ],
)
def test_wrong_addresses_are_named_and_passwords_never_shown(
    tmp_path: Path, one: str, other: str, words: str, code: int
) -> None:
    inside = {text: text.replace(":///", f":///{tmp_path}/") for text in (one, other) if text.startswith("sqlite:///")}
    done = Program(tmp_path / "data")("db", "copy", inside.get(one, one), inside.get(other, other))
    said = refused(done, code=code)
    assert words in said.replace(f"{tmp_path}/", "")
    assert "77aa" not in said


@requirement("scale.copy-refusals")
def test_a_server_that_does_not_answer_is_given_up(tmp_path: Path, filled: Filled, program: Program) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://u:{PASSWORD}@127.0.0.1:{silent.getsockname()[1]}/d"
        refused(program("db", "copy", source(filled), url), "timeout")


@requirement("scale.copy-refusals")
def test_a_schema_of_another_version_is_not_copied(filled: Filled, program: Program, bare_url: str) -> None:
    changed(filled.folder / "stentor.db", "update alembic_version set version_num = '0011'")
    refused(program("db", "copy", source(filled), bare_url), "has schema 0011", "stentor db upgrade")
    changed(filled.folder / "stentor.db", "update alembic_version set version_num = '9999'")
    refused(program("db", "copy", source(filled), bare_url), "9999")


@requirement("scale.copy-whole")
def test_columns_that_count_by_themselves_go_on_and_tables_of_one_side_are_left_out(
    filled: Filled, program: Program, bare_url: str
) -> None:
    on_server = Program(filled.folder, {"SERVICE_DATABASE_URL": bare_url})
    assert on_server("db", "upgrade").code == 0
    changed(
        filled.folder / "stentor.db",
        "create table counted (n integer primary key, yes integer, small integer)",
        "insert into counted values (7, 1, 12), (3, 0, null)",
    )
    with psycopg.connect(bare_url, autocommit=True) as admin:
        admin.execute("create table counted (n bigserial primary key, yes boolean, small smallint)")
        admin.execute("create table only_here (n integer)")
        moved = copied(program, source(filled), bare_url)
        assert moved["left_out"] == ["only_here"]
        rows = admin.execute("select n, yes, small from counted order by n").fetchall()
        assert rows == [(3, False, None), (7, True, 12)]
        assert admin.execute("insert into counted default values returning n").fetchone() == (8,)


@pytest.mark.fault
@requirement("scale.copy-interrupted")
def test_a_disk_that_fills_up_in_the_middle_leaves_nothing_to_start_on(
    filled: Filled, program: Program, bare_url: str, small_disk: Path
) -> None:
    large = "randomblob(3000000 / (select count(*) from memory_versions))"
    changed(filled.folder / "stentor.db", f"update memory_versions set content = {large}")
    copied(program, source(filled), bare_url)
    home, ballast = small_disk / "home", small_disk / "ballast"
    assert Program(home)("db", "upgrade").code == 0
    ballast.write_bytes(bytes(9_000_000))
    target = f"sqlite:///{home}/stentor.db"
    said = refused(program("db", "copy", with_password(bare_url), target), "disk is full")
    assert "run the same command again" in " ".join(said.split())
    assert Program(home)("db", "status", "--json").json["state"] == "unfinished copy"
    ballast.unlink()
    assert copied(program, bare_url, target)["run_log"]["intact"] is True
    assert Program(home)("db", "status").code == 0


@pytest.mark.fault
@requirement("scale.upgrade-copy-first", "scale.backup")
def test_without_room_there_is_no_backup_and_no_upgrade(small_disk: Path) -> None:
    program = Program(small_disk / "home")
    assert program("db", "upgrade").code == 0
    changed(small_disk / "home" / "stentor.db", "update alembic_version set version_num = '0011'")
    fill_disk(small_disk / "ballast")
    with (small_disk / "ballast").open("r+b") as ballast:
        ballast.truncate((small_disk / "ballast").stat().st_size - 200_000)
    names = sorted(path.name for path in (small_disk / "home").iterdir())
    for command in (("db", "upgrade"), ("db", "backup", str(small_disk / "home" / "copy.db"))):
        done = program(*command)
        assert (done.code, "Nothing was changed" in done.err) == (3, True), done.err
    assert program("db", "status", "--json").json["revision"] == "0011"
    assert sorted(path.name for path in (small_disk / "home").iterdir()) == names
