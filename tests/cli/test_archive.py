"""`stentor archive`: archive now, count, list and verify, and what the other commands say of archived tasks."""

from __future__ import annotations

import shutil

import pytest

from tests.cli.program import SUMMARIZE, TEXT, Program
from tests.requirements import requirement

pytestmark = pytest.mark.only("sqlite", reason="the stores are tested on each database in tests/domains/retention")


def fill(program: Program, tasks: int = 2) -> None:
    for n in range(tasks):
        assert program("task", "submit", *SUMMARIZE, "--input", TEXT, "--id", f"t{n}", "--wait").code == 0


@requirement("retention.command")
def test_a_run_archives_and_the_archives_are_listed_and_verified(program: Program) -> None:
    fill(program)
    assert program("archive", "list", "--json").json == []
    dry = program("archive", "run", "--older-than", "0d", "--dry-run", "--json").json
    assert dry == {"tasks": 2, "tenants": {"default": 2}}
    assert program("archive", "run", "--older-than", "1d", "--json").json["tasks"] == 0
    done = program("archive", "run", "--older-than", "0d", "--json").json
    assert (done["tasks"], done["archives"], done["skipped"]) == (2, 1, 0)
    (listed,) = program("archive", "list", "--json").json
    assert (listed["tasks"], listed["events"], listed["size_bytes"]) == (2, done["events"], done["size_bytes"])
    assert (program.data_dir / "archive" / listed["name"] / "events.parquet").is_file()
    assert listed["name"] in program("archive", "list").out
    verified = program("archive", "verify", "--json").json
    assert (verified["intact"], verified["events"]) == (True, done["events"])
    assert "No task may be archived" in program("archive", "run", "--older-than", "0").out


@requirement("retention.command")
def test_other_commands_name_the_archive(program: Program) -> None:
    fill(program)
    program("archive", "run", "--older-than", "0d")
    shown = program("task", "show", "t0")
    assert shown.code != 0
    assert "TASK_ARCHIVED" in shown.err
    folder = program.data_dir / "archive"
    alone, whole = (program("provenance", "verify", *more) for more in ((), ("--archive", str(folder))))
    assert (alone.code, whole.code) == (0, 0)
    assert "were not read" in alone.out
    assert "were compared" in whole.out
    next(folder.glob("*/events.parquet")).write_bytes(b"PAR1")
    assert program("archive", "verify").code == 1
    damaged = program("provenance", "verify", "--archive", str(folder), "--json")
    assert (damaged.code, damaged.json["intact"]) == (1, False)
    shutil.rmtree(folder)
    assert "cannot be read" in program("archive", "verify").err


@requirement("retention.command")
def test_a_wrong_age_and_a_folder_that_is_in_use_are_refused(program: Program) -> None:
    fill(program, 1)
    assert "--older-than" in program("archive", "run").err
    wrong = program("archive", "run", "--older-than", "90 weeks")
    assert (wrong.code, "number of days" in wrong.err) == (2, True)
    (program.data_dir / "archive").write_text("not a folder")
    refused = program("archive", "run", "--older-than", "0d")
    assert (refused.code, "cannot be written" in refused.err) == (1, True)
    assert program("task", "show", "t0").code == 0


@requirement("retention.proofs")
def test_a_copy_and_a_backup_of_the_database_know_what_was_archived(program: Program, bare_url: str) -> None:
    fill(program)
    events = program("archive", "run", "--older-than", "0d", "--json").json["events"]
    copied = program("db", "copy", f"sqlite:///{program.data_dir}/stentor.db", bare_url, "--json").json
    assert (copied["run_log"]["findings"], copied["run_log"]["archived"]) == ([], events)
    folder = program.data_dir / "archive"
    assert str(folder) in [moved["path"] for moved in copied["to_move"]]
    target = Program(program.data_dir.parent / "moved", {"SERVICE_DATABASE_URL": bare_url})
    assert target("archive", "verify", "--folder", str(folder), "--json").json["events"] == events
    backup = program.data_dir.parent / "backup.db"
    assert program("db", "backup", str(backup)).code == 0
    verified = program("provenance", "verify", "--file", str(backup), "--archive", str(folder), "--json").json
    assert (verified["intact"], verified["archived"], verified["archives_read"]) == (True, events, 1)


@requirement("retention.command")
def test_a_run_needs_a_stopped_service_and_a_dry_run_does_not(served: tuple[Program, object]) -> None:
    program, _ = served
    refused = program("archive", "run", "--older-than", "0d")
    assert refused.code != 0
    assert "in use" in refused.err
    assert program("archive", "run", "--older-than", "0d", "--dry-run").code == 0
