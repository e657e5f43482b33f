"""Folders of runs that are hard to remove."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stentor.core.errors import SandboxUnavailable
from stentor.domains.sandbox.broker.file_tools import _describe_entry
from stentor.domains.sandbox.process_sandbox import ProcessSandbox, remove_folder
from tests.patience import soon


def test_a_folder_that_cannot_be_removed_in_time_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **options: Any) -> None:
        if "timeout" in options:
            raise subprocess.TimeoutExpired("rm", options["timeout"])
        raise OSError

    monkeypatch.setattr(shutil, "rmtree", fail)
    monkeypatch.setattr(subprocess, "run", fail)
    remove_folder(tmp_path)
    assert "run folder not removed" in caplog.text


async def test_what_an_earlier_process_left_is_removed_beside_the_start(tmp_path: Path) -> None:
    leftover = tmp_path / "runs" / "left"
    leftover.mkdir(parents=True)
    (leftover / "file").touch()
    ProcessSandbox(tmp_path, {}, enabled=False).open()
    assert list((tmp_path / "runs").iterdir()) == []
    await soon(lambda: sorted(path.name for path in tmp_path.iterdir()) == ["kept", "runs", "stentor-tool"])


async def test_no_agent_id_in_the_database_leads_out_of_the_folder_for_work(sandbox_dir: Path) -> None:
    sandbox = ProcessSandbox(sandbox_dir, {}, enabled=False)
    sandbox.open()
    assert sandbox.problem is None
    for agent_id in (str(sandbox_dir), "../runs", "..", ".", ""):
        with pytest.raises(SandboxUnavailable, match="cannot be the name of a folder"):
            async with sandbox.run_folders(agent_id):
                pass
    async with sandbox.run_folders("01a22d6b-36b5-7ce8-8c5d-0dcc22f5eafd") as folders:
        assert folders.work_folder.parent == sandbox_dir / "kept"
    assert list((sandbox_dir / "runs").iterdir()) == []


def test_a_file_that_is_deleted_while_its_folder_is_listed_has_no_size(tmp_path: Path) -> None:
    file = tmp_path / "short-lived"
    file.touch()
    with os.scandir(tmp_path) as entries:
        (entry,) = entries
        file.unlink()
        assert _describe_entry(entry) == {"name": "short-lived", "kind": "file", "size": None}
