"""One owner per data folder."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stentor.core.errors import StartRefused
from stentor.core.filesystem import LOCK_FILE, DataFolderLock, read_lock_holder

HOLD = """
import sys; from pathlib import Path; from stentor.core.filesystem import DataFolderLock
lock = DataFolderLock(Path(sys.argv[1]), "then"); print("held", flush=True); sys.stdin.read()
"""


def test_a_second_owner_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    lock = DataFolderLock(tmp_path, "2026-01-01T00:00:00Z")
    with pytest.raises(StartRefused, match=f"process {os.getpid()}, since 2026-01-01"):
        DataFolderLock(tmp_path, "later")
    lock.publish(gateway="http://127.0.0.1:1")
    owner = read_lock_holder(tmp_path)
    assert owner is not None
    assert (owner.pid, owner.gateway) == (os.getpid(), "http://127.0.0.1:1")
    lock.release()
    assert read_lock_holder(tmp_path) is None
    DataFolderLock(tmp_path, "again").release()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StartRefused, match=f"process {holder.pid}"):
            DataFolderLock(tmp_path, "now")
        holder.kill()
    assert read_lock_holder(tmp_path) is None
    DataFolderLock(tmp_path, "now").release()


def test_a_look_at_the_owner_does_not_refuse_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DataFolderLock(tmp_path, "before").release()
    with (tmp_path / LOCK_FILE).open("rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        monkeypatch.setattr("stentor.core.filesystem.time.sleep", lambda _: fcntl.flock(reader, fcntl.LOCK_UN))
        DataFolderLock(tmp_path, "now").release()


def test_a_folder_without_or_with_a_broken_lock_file_has_no_owner(tmp_path: Path) -> None:
    assert read_lock_holder(tmp_path) is None
    (tmp_path / LOCK_FILE).write_text("nonsense")
    assert read_lock_holder(tmp_path) is None
    DataFolderLock(tmp_path, "now").release()


def test_the_lock_file_is_for_its_owner_only(tmp_path: Path) -> None:
    lock = DataFolderLock(tmp_path, "now")
    assert (tmp_path / LOCK_FILE).stat().st_mode & 0o077 == 0
    lock.release()


def test_whoever_reads_the_lock_file_while_it_is_written_finds_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = DataFolderLock(tmp_path, "now")
    (tmp_path / LOCK_FILE).write_text('{"pid": 7, "since"')
    monkeypatch.setattr("stentor.core.filesystem.time.sleep", lambda _: lock.publish(certificate="x"))
    owner = read_lock_holder(tmp_path)
    assert owner is not None
    assert owner.certificate == "x"
    lock.release()
