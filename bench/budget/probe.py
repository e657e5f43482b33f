"""`python -m bench.budget.probe count|sample FD serve ...`: a `stentor` whose work is counted or sampled.

Each byte from the socket FD asks for one line of JSON: the totals so far.

`count`: statements that the driver sent, by part and by the words that identify them. On SQLite nothing is
checkpointed meanwhile, so that the WAL holds all that was written.
`sample`: processor time by thread and part. Every millisecond or so, each thread's stack is looked at, and the
processor time that the thread used since the last look (its own clock of the kernel) goes to the part it is in.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from bench.budget import parts
from stentor.core.db import rows_sql
from stentor.core.db.sql import Params, Sql
from stentor.core.db.sqlite import driver as sqlite

Totals = Callable[[], dict[str, float]]
_WORDS = 90


class Statements:
    """Statements by `part|text`; the text is cut, which is enough to find it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def note(self, text: str, part: str, count: int = 1) -> None:
        with self._lock:
            self._counts[f"{part}|{text[:_WORDS]}"] += count

    def totals(self) -> dict[str, float]:
        with self._lock:
            return dict(self._counts)


def count(connection: Any, statements: Statements, *, joint: bool) -> None:
    """Count all that connections of this class execute. `joint`: the driver inserts into many tables at once."""
    for name in ("run", "rows"):
        _before(connection, name, lambda sql, _params: statements.note(sql.text, _part(sql)))
    _before(connection, "control", lambda text: statements.note(text, parts.TRANSACTIONS))
    add = _joint_inserts if joint else _inserts
    _before(connection, "add", lambda inserts: add(statements, inserts))
    many = connection.many

    def counted_many(self: Any, sql: Sql, rows: Any) -> None:
        rows = list(rows)
        statements.note(sql.text, _part(sql), len(rows))
        many(self, sql, rows)

    connection.many = counted_many
    if joint:  # on PostgreSQL these go past `control`, `add` and `run`
        _before(connection, "begin", lambda _locks=(): statements.note("begin", parts.TRANSACTIONS))
        _before(connection, "commit", lambda: statements.note("commit", parts.TRANSACTIONS))
        _before(connection, "add_at_commit", lambda inserts: add(statements, inserts))
        _before(connection, "run_at_commit", lambda sql, _params: statements.note(sql.text, _part(sql)))
        _before(connection, "update_at_commit", lambda update, rows: _updates(statements, update, rows))


def _before(connection: Any, name: str, note: Callable[..., None]) -> None:
    """Call `note` with the arguments before each call of a method."""
    method = getattr(connection, name)

    def counted(self: Any, *arguments: Any) -> Any:
        note(*arguments)
        return method(self, *arguments)

    setattr(connection, name, counted)


def _part(sql: Sql) -> str:
    return parts.of_table(min(sql.tables, default=""))


def _inserts(statements: Statements, inserts: list[rows_sql.Insert]) -> None:
    for table, rows in inserts:
        number = len(list(rows_sql.insert_statements(table, rows)))
        statements.note(f"insert into {table.table}", parts.of_table(table.table), number)


def _joint_inserts(statements: Statements, inserts: list[rows_sql.Insert]) -> None:
    number = len(list(rows_sql.joint_insert_statements(inserts)))
    statements.note(f"insert into {', '.join(table.table for table, _ in inserts)}", parts.TRANSACTIONS, number)


def _updates(statements: Statements, update: rows_sql.RowUpdate, rows: list[Params]) -> None:
    statements.note(update.one.text, _part(update.one), len(list(update.statements(rows))))


def count_all() -> Totals:
    statements = Statements()
    count(sqlite.SqliteConnection, statements, joint=False)
    open_writer = sqlite.SqliteDriver.writer

    def writer(self: sqlite.SqliteDriver) -> sqlite.SqliteConnection:
        opened = open_writer(self)
        opened._raw.execute("pragma wal_autocheckpoint=0")
        return opened

    setattr(sqlite.SqliteDriver, "writer", writer)  # noqa: B010 - pyrefly refuses the assignment
    try:
        from stentor.core.db.postgres.connection import PostgresConnection
    except ImportError:
        return statements.totals
    count(PostgresConnection, statements, joint=True)
    return statements.totals


class Sampler:
    """Processor seconds by `thread|part`; threads are `loop`, `writer` and `others`."""

    def __init__(self) -> None:
        self._seconds = defaultdict[str, float](float)
        self._seen: dict[int, float] = {}
        # Otherwise a thread keeps the interpreter for 5 ms after it was asked for it, and is then looked at where it
        # gave it up by itself: too often in system calls.
        sys.setswitchinterval(0.00002)
        threading.Thread(target=self._run, name="sampler", daemon=True).start()

    def totals(self) -> dict[str, float]:
        return dict(self._seconds)

    def _run(self) -> None:
        me = threading.get_ident()
        while True:
            time.sleep(random.uniform(0.0004, 0.0012))  # not in step with anything that repeats
            frames = sys._current_frames()
            for thread in threading.enumerate():
                if thread.ident != me and thread.ident in frames and thread.native_id is not None:
                    self._look(thread, thread.native_id, frames[thread.ident])

    def _look(self, thread: threading.Thread, native_id: int, frame: Any) -> None:
        try:
            now = time.clock_gettime(
                (~native_id << 3) | 6
            )  # the kernel's clock of one thread, see clock_getcpuclockid(3)
        except OSError:
            return  # it has ended
        used = now - self._seen.get(native_id, now)
        self._seen[native_id] = now
        if used > 0:
            main = thread is threading.main_thread()
            role = "loop" if main else "writer" if thread.name == "stentor-db-writer" else "others"
            self._seconds[f"{role}|{parts.of_stack(frame)}"] += used


def answer(link: socket.socket, totals: Totals) -> None:
    while link.recv(1):
        link.sendall(json.dumps(totals()).encode() + b"\n")


def main() -> None:
    mode, fd, *command = sys.argv[1:]
    totals = count_all() if mode == "count" else Sampler().totals
    link = socket.socket(fileno=int(fd))
    threading.Thread(target=answer, args=(link, totals), name="budget", daemon=True).start()
    sys.argv = ["stentor", *command]
    from stentor.cli import main as stentor

    stentor()


if __name__ == "__main__":
    main()
