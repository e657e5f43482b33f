"""Runs of the program that begin in a process with everything imported, for a start takes longer than most commands.

Each run is a process of its own all the same: forked, with its own arguments, environment, files and end. The keeper is
`python -m tests.cli.warm PATH`; it ends with the connection that began it.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from functools import cache
from pathlib import Path
from typing import NoReturn

STATUS = struct.Struct("i")


def run(args: list[str], env: dict[str, str], stdin: bytes, timeout: float) -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run` does it. Raises TimeoutError."""
    with socket.socket(socket.AF_UNIX) as wire, _file(stdin) as given, _file() as out, _file() as err:
        wire.settimeout(timeout)
        wire.connect(_keeper())
        wanted = json.dumps({"args": args, "env": env, "cwd": str(Path.cwd())}).encode()
        files = [file.fileno() for file in (given, out, err)]
        socket.send_fds(wire, [struct.pack("I", len(wanted))], files)
        wire.sendall(wanted)
        status = wire.recv(STATUS.size, socket.MSG_WAITALL)
        return subprocess.CompletedProcess(args, STATUS.unpack(status)[0], _content(out), _content(err))


def _file(content: bytes = b"") -> io.FileIO:
    made = io.FileIO(os.memfd_create("stentor-test"), "r+")
    made.write(content)
    made.seek(0)
    return made


def _content(file: io.FileIO) -> bytes:
    file.seek(0)
    return file.readall()


@cache
def _keeper() -> str:
    """Where the keeper of this process answers; begun with the first run."""
    path = f"\0stentor-warm-{os.getpid()}"
    base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.warm", path[1:]],
        cwd=Path(__file__).parents[2],
        env=base,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    atexit.register(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return path


class Keeper:
    def __init__(self, name: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{name}")
        self._listener.listen()
        self._callers: dict[int, socket.socket] = {}
        self._ended, ended = os.pipe()
        os.set_blocking(self._ended, False)
        os.set_blocking(ended, False)
        signal.set_wakeup_fd(ended)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector = selectors.DefaultSelector()
        for file in (self._listener.fileno(), self._ended, sys.stdin.fileno()):
            self._selector.register(file, selectors.EVENT_READ)

    def keep(self) -> list[str] | None:
        """For as long as the tests live. In each run's own process: its arguments."""
        while True:
            for key, _ in self._selector.select():
                if key.fd == sys.stdin.fileno():
                    return None
                if key.fd == self._ended:
                    os.read(self._ended, 4096)
                    self._reap()
                elif (args := self._begin()) is not None:
                    return args

    def _begin(self) -> list[str] | None:
        caller, _ = self._listener.accept()
        head, files, _, _ = socket.recv_fds(caller, 4, 3)
        wanted = json.loads(caller.recv(struct.unpack("I", head)[0], socket.MSG_WAITALL))
        if child := os.fork():
            self._callers[child] = caller
            for file in files:
                os.close(file)
            return None
        caller.close()
        self._become(wanted["env"], wanted["cwd"], files)
        return list(wanted["args"])

    def _become(self, env: dict[str, str], cwd: str, files: list[int]) -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.default_int_handler)
        self._selector.close()
        self._listener.close()
        for caller in self._callers.values():
            caller.close()
        for at, file in enumerate(files):
            os.dup2(file, at)
            os.close(file)
        os.environ.clear()
        os.environ.update(env)
        os.chdir(cwd)

    def _reap(self) -> None:
        while self._callers:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            with self._callers.pop(child) as caller:
                caller.sendall(STATUS.pack(os.waitstatus_to_exitcode(status)))


def _import_all() -> None:
    import stentor.cli

    for module in pkgutil.walk_packages(stentor.cli.__path__, "stentor.cli."):
        importlib.import_module(module.name)


def main() -> NoReturn:
    _import_all()
    gc.collect()
    gc.freeze()
    keeper = Keeper(sys.argv[1])
    os.write(1, b"ready\n")
    args = keeper.keep()
    if args is None:
        os._exit(0)
    sys.argv = ["stentor", *args]
    _end(_status())


def _status() -> int:
    from stentor.cli import main as stentor

    try:
        stentor()
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(end.code + "\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - shown as the interpreter would, for the test to find
        traceback.print_exc()
        return 1
    return 0


def _end(status: int) -> NoReturn:
    """Without taking down everything that was imported, which takes longer than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
