"""Commands that do the work themselves, because nobody holds the data folder."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import threading
from pathlib import Path

import pytest

from stentor.auth.api_keys import admin_key_file
from stentor.core.filesystem import LOCK_FILE, read_lock_holder
from tests.cli.program import COMMAND, SUMMARIZE, TEXT, Program
from tests.requirements import requirement
from tests.stub import Answer, Asked, serving


@requirement("execution.builtin-summarizer")
def test_a_task_is_done_without_any_service_or_set_up(program: Program) -> None:
    done = program("task", "submit", *SUMMARIZE, "--input", TEXT, "--wait", "--json")
    assert done.code == 0
    assert done.json["result"]["summary"] in TEXT, "the sentences of the text itself"
    assert read_lock_holder(program.data_dir) is None, "the folder is free again"
    assert not admin_key_file(program.data_dir).exists(), "the first start of the service makes the key and shows it"
    assert program("task", "list", "--json").json["total"] == 1


def test_what_was_submitted_without_waiting_is_done_before_the_command_ends(program: Program) -> None:
    submitted = program("task", "submit", *SUMMARIZE, "--input", TEXT, "--json").json
    shown = program("task", "show", submitted["task_id"], "--json").json
    assert (shown["status"], shown["attempts"]) == ("completed", 1)


def test_reading_or_changing_makes_no_folder(program: Program) -> None:
    for words in (["task", "list"], ["task", "show", "x"], ["task", "watch", "x"], ["agent", "activate", "x"]):
        done = program(*words, "--json")
        assert done.code == 4
        assert "Start `stentor serve`" in done.json["error"]
    assert not program.data_dir.exists()


def test_a_command_that_makes_a_data_folder_says_so_once(program: Program) -> None:
    first = program("task", "submit", *SUMMARIZE, "--input", TEXT)
    assert f"{program.data_dir} had no database: this command created one" in first.err
    assert "--data-dir" in first.err
    assert "this command created one" not in program("task", "submit", *SUMMARIZE, "--input", TEXT).err


def test_a_data_folder_that_cannot_be_used_is_refused_with_the_reason(program: Program) -> None:
    program.data_dir.write_text("a file")
    for words in (["task", "submit", *SUMMARIZE, "--input", TEXT], ["serve", "--gateway-port", "0"]):
        refused = program(*words)
        assert (refused.code, refused.out) == (3, "")
        assert f"The data folder {program.data_dir} is a file. Choose another one with --data-dir" in refused.err
        assert "created one" not in refused.err
    program.data_dir.unlink()
    (program.data_dir / LOCK_FILE).mkdir(parents=True)  # as in a folder that is read-only, also for root
    refused = program("serve", "--gateway-port", "0")
    assert refused.code == 3
    assert f"The data folder {program.data_dir} cannot be written: Is a directory" in refused.err


@pytest.mark.parametrize("value", ["", " "])
def test_a_blank_data_folder_is_not_the_current_one(program: Program, value: str) -> None:
    for words in (["serve", "--gateway-port", "0"], ["config"], ["task", "list"]):
        refused = program(*words, "--data-dir", value)
        assert refused.code == 2, words
        assert "must not be blank" in refused.err


def test_a_data_folder_of_another_user_is_refused_with_the_reason(program: Program) -> None:
    program.data_dir.mkdir(mode=0o000)
    # Root may read any folder, unless it has given up that capability.
    as_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*as_user, *COMMAND, "serve", "--gateway-port", "0"],
        env=program.env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    reason = f"error: The data folder {program.data_dir} cannot be written: Permission denied."
    assert (done.returncode, done.stderr.splitlines()) == (
        3,
        [f"{reason} Choose another one with --data-dir (SERVICE_DATA_DIR)."],
    )


def test_a_command_that_reads_takes_no_lock_and_changes_nothing(program: Program) -> None:
    program("task", "submit", "--type", "e", *("--input", "x"), "--id", "t")
    database = program.data_dir / "stentor.db"
    before = _rows(database)
    lock = os.open(program.data_dir / LOCK_FILE, os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_SH)  # whoever wanted the lock for itself would be refused
    try:
        assert program("agent", "list", "--json").json["total"] == 1
        assert program("task", "list", "--json").json["total"] == 1
        assert program("task", "show", "t", "--activity").code == 0
        assert program("agent", "register", "ann").code == 3
    finally:
        os.close(lock)
    assert _rows(database) == before


def _rows(database: Path) -> list[int]:
    connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
    names = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
    counts = [connection.execute(f'select count(*) from "{name}"').fetchone()[0] for name in sorted(names)]
    connection.close()
    return counts


def test_waiting_for_a_worker_that_cannot_come_is_refused_and_the_task_stays(program: Program) -> None:
    program("agent", "register", "ann", "--capability", "echo")
    words = ["task", "submit", "--type", "echo", "--capability", "echo", "--input", "x", "--id", "t", "--wait"]
    done = program(*words)
    assert done.code == 1
    assert "is waiting for the worker ann" in done.err
    assert program("task", "show", "t", "--json").json["status"] == "queued"
    done = program(*words[:-3], "--id", "u")
    assert (done.code, done.out) == (0, "Task u is queued.\n")
    assert "is waiting for the worker ann, and workers need a running service: start `stentor serve`." in done.err


def test_a_key_that_is_given_limits_the_command_here_too(program: Program) -> None:
    program("agent", "register", "ann", "--capability", "echo")
    program.environ["SERVICE_API_KEY_READER"] = "reader-key-51aa:admin:read"
    refused = program("agent", "list", "--key", "reader-key-51aa", "--json")
    assert refused.json["details"]["code"] == "FORBIDDEN"
    assert program("task", "list", "--key", "reader-key-51aa").code == 0
    assert program("task", "list", "--key", "another-key").code == 3
    assert program("agent", "list").code == 0


def test_commands_at_the_same_time_wait_for_each_other(program: Program) -> None:
    program("agent", "register", "first")
    running = [program.start("agent", "register", f"a{n}", "--json") for n in range(4)]
    for process in running:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
    assert program("agent", "list", "--json").json["total"] == 5 + 1, "and the builtin one"


def test_ctrl_c_in_the_middle_of_the_work_ends_quietly_and_frees_the_folder(program: Program) -> None:
    asked, released = threading.Event(), threading.Event()

    def respond(request: Asked, before: int) -> Answer:
        asked.set()
        if before == 0:
            released.wait(60)
        return Answer(body={"result": "done at last"})

    with serving(respond) as (address, _):
        program.environ["SERVICE_OUTBOUND_ALLOW"] = address.removeprefix("http://")
        words = ["--capability", "echo", "--runtime", "http", "--endpoint", address]
        assert program("agent", "register", "ann", *words).code == 0
        options = ["--type", "echo", "--capability", "echo", "--input", "x", "--id", "t", "--wait"]
        waiting = program.start("task", "submit", *options)
        assert asked.wait(200)
        assert waiting.stderr is not None
        assert waiting.stderr.readline() == "Task t is queued.\n"
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=200)
        released.set()
        assert (waiting.returncode, out) == (130, "")
        assert "Follow the task later: stentor task watch t\n" in err
        assert "Traceback" not in err
        assert read_lock_holder(program.data_dir) is None
        taken_up = program("task", "watch", "t")
        assert taken_up.code == 0, taken_up.err
        assert "done at last" in taken_up.out


def test_state_in_postgresql_is_written_only_through_a_service(program: Program) -> None:
    program.environ["SERVICE_DATABASE_URL"] = "postgresql://user:s3cret-pass@127.0.0.1:1/none"
    done = program("agent", "register", "ann")
    assert done.code == 4
    assert "SERVICE_URL" in done.err
    read = program("agent", "list")
    assert read.code == 3
    assert "The database of SERVICE_DATABASE_URL cannot be used" in read.err
    assert "s3cret" not in done.err + read.err


def test_an_older_or_newer_schema_is_not_read(program: Program) -> None:
    program("agent", "register", "ann")
    connection = sqlite3.connect(program.data_dir / "stentor.db")
    with connection:
        connection.execute("update alembic_version set version_num = '9999'")
    connection.close()
    done = program("agent", "list")
    assert done.code == 3
    assert "has schema 9999" in done.err
