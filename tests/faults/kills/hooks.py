"""In a service that a test has forked: kills it, or the database below it, at a commit.

Part of the tests: `tests.forkserver` calls `install` before the program begins, if the environment says so.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stentor.core.db.postgres.connection import PostgresConnection
from stentor.core.db.sqlite.driver import SqliteConnection
from tests.faults.kills.mortality import KillLog, When, choose, death

LOG, COMMITS, POSTMASTER = "KILLS_LOG", "KILLS_COMMITS", "KILLS_POSTMASTER"
"""The file of the kills; the commits after which the service has died at the latest; the file with the pid of the
database's postmaster, if there is one.
"""
DATABASE_SHARE = 0.3
"""How many of the kills are the database's, if it has processes of its own."""


class Plan:
    """A kill at the n-th commit, and if it is the database's another one at a later commit."""

    def __init__(self) -> None:
        self._dice = random.SystemRandom()
        self._log = KillLog(Path(os.environ[LOG]))
        self._postmaster = os.environ.get(POSTMASTER)
        self._commits = int(os.environ[COMMITS])
        self._left = self._dice.randint(1, self._commits)
        self._lock = threading.Lock()

    def commit(self, connection: Any, original: Callable[[Any], None]) -> None:
        with self._lock:
            self._left -= 1
            is_now = self._left == 0
            if is_now:
                self._left = self._dice.randint(1, self._commits)
        with death(choose() if is_now else None, lambda when: self._kill(connection, when)):
            original(connection)

    def _kill(self, connection: Any, when: When) -> None:
        what, pids = "service", [os.getpid()]
        if self._postmaster is not None and self._dice.random() < DATABASE_SHARE:
            what, pids = self._choose_of_database(connection, Path(self._postmaster))
        self._log.note(f"{what} {when} a commit")
        for pid in pids:
            # The number of a server that was killed may be another process's by now.
            if pid == os.getpid() or _is_of_database(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _choose_of_database(self, connection: Any, file: Path) -> tuple[str, list[int]]:
        own = [connection._raw.info.backend_pid]
        postmaster = []
        with suppress(OSError, ValueError, IndexError):  # it is dead already
            postmaster = [int(file.read_text().splitlines()[0])]
        children = [pid for parent in postmaster for pid in _read_children(parent)]
        return self._dice.choice(
            [
                ("one process of the database", own),
                ("the database's postmaster", postmaster),
                ("all processes of the database", postmaster + children),
            ]
        )


def _is_of_database(pid: int) -> bool:
    with suppress(OSError):
        return b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _read_children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def install() -> None:
    """Make the commits of this process mortal."""
    plan = Plan()

    def mortal(original: Any) -> Any:
        return lambda connection: plan.commit(connection, original)

    SqliteConnection.commit = mortal(SqliteConnection.commit)  # pyrefly: ignore[method-assign] - of this process
    PostgresConnection.commit = mortal(PostgresConnection.commit)  # pyrefly: ignore[method-assign] - of this process
