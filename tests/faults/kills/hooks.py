"""In a service that a test has forked: kills it, or the database below it, at a commit.

Part of the tests: `tests.forkserver` calls `install` before the program begins, if the environment says so.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from stentor.core.db.postgres import PostgresConnection
from stentor.core.db.sqlite import SqliteConnection
from tests.faults.kills.mortality import KillLog, kill_self

LOG, COMMITS, POSTMASTER = "KILLS_LOG", "KILLS_COMMITS", "KILLS_POSTMASTER"
"""The file of the kills; the commits after which the service has died at the latest; the file with the pid of the
database's postmaster, if there is one.
"""
LONGEST_SECONDS = 0.004
DATABASE_SHARE = 0.3


class Plan:
    """One kill at the n-th commit."""

    def __init__(self) -> None:
        dice = self._dice = random.Random(os.urandom(8))
        self._log = KillLog(Path(os.environ[LOG]))
        self._postmaster = os.environ.get(POSTMASTER)
        self._left = dice.randint(1, int(os.environ[COMMITS]))
        self._when = dice.choice(("before", "during", "after"))
        self._lock = threading.Lock()

    def commit(self, connection: Any, original: Any) -> None:
        with self._lock:
            self._left -= 1
            is_now = self._left == 0
        if not is_now:
            original(connection)
            return
        kill = self._choose(connection)
        if self._when == "before":
            kill()
        if self._when == "during":
            threading.Thread(target=self._kill_soon, args=(kill,), daemon=True).start()
        original(connection)
        if self._when == "after":
            kill()

    def _kill_soon(self, kill: Any) -> None:
        time.sleep(self._dice.uniform(0, LONGEST_SECONDS))
        kill()

    def _choose(self, connection: Any) -> Any:
        if self._postmaster is None or self._dice.random() > DATABASE_SHARE:
            return lambda: self._note_and("service", kill_self)
        # The service lives on; the next commits have a plan of their own.
        self._left = self._dice.randint(1, int(os.environ[COMMITS]))
        when, self._when = self._when, self._dice.choice(("before", "during", "after"))
        pid = connection._raw.info.backend_pid
        if self._dice.random() < 0.5:
            return lambda: self._note_and("server process of the database", lambda: _kill(pid), when)
        return lambda: self._note_and("database", lambda: _kill(_read_pid(self._postmaster), pid), when)

    def _note_and(self, what: str, kill: Any, when: str | None = None) -> None:
        self._log.note(f"{what} {when or self._when} a commit")
        kill()


def _read_pid(file: str | None) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path(file or "").read_text().splitlines()[0])
    return 0  # it is dead already


def _kill(*pids: int) -> None:
    for pid in pids:
        if pid > 0:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def install() -> None:
    """Make the commits of this process mortal."""
    plan = Plan()

    def mortal(original: Any) -> Any:
        return lambda connection: plan.commit(connection, original)

    SqliteConnection.commit = mortal(SqliteConnection.commit)  # pyrefly: ignore[method-assign] - of this process
    PostgresConnection.commit = mortal(PostgresConnection.commit)  # pyrefly: ignore[method-assign] - of this process
