"""The `stentor` program, forked from a process that has imported it: a start takes 0.2 s instead of 2.

Each run is a process of its own all the same, with its own arguments, environment, folder, files, signals and end. The
fork server is `python -m tests.forkserver NAME`. It ends with the process of the tests that began it, and then kills
what it forked. Tests of how the interpreter itself starts use `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import re
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import typer.main

from tests import certificates, warm

NUMBER = struct.Struct("i")
HEAVY = (
    "numpy",
    "tokenizers",
    "uvloop",
    "httptools",
    "psycopg",
    "cryptography.hazmat.backends.openssl",
    "rich.traceback",
)
"""What the program imports only once it needs it. Not onnxruntime and grpc: the one starts a thread by that, and the
other reads the environment.
"""

HOOK = "TESTS_HOOK"
"""In the environment of a process, names a module of tests whose `install()` it calls before the program begins."""

LEFT_OUT = re.compile(r"\.(__main__|migrations\.env|embedding\.onnx_export)$|\.surfaces\.grpc\.")
"""Modules that are run and not imported, and those that import grpc."""


def run(
    args: Sequence[str], env: Mapping[str, str], stdin: bytes = b"", timeout: float = 600, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run` does it, with both outputs captured. Raises TimeoutError."""
    with _memory(stdin) as given, _memory() as out, _memory() as err:
        with _Child(args, env, cwd, (given.fileno(), out.fileno(), err.fileno())) as child:
            code = child.wait(timeout)
        return subprocess.CompletedProcess(list(args), code, _content(out), _content(err))


def run_text(
    args: Sequence[str], env: Mapping[str, str], timeout: float = 600, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    done = run(args, env, b"", timeout, cwd)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


SCRIPT = """\
#!{python} -IS
import json, os, signal, socket, struct, sys
NUMBER = struct.Struct("i")
wire = socket.socket(socket.AF_UNIX)
wire.connect({address!r})
wanted = json.dumps({{"args": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}}).encode()
socket.send_fds(wire, [NUMBER.pack(len(wanted))], [0, 1, 2])
wire.sendall(wanted)
child, = NUMBER.unpack(wire.recv(NUMBER.size, socket.MSG_WAITALL))
def pass_on(number, _):
    try:
        os.kill(child, number)
    except ProcessLookupError:
        pass
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, pass_on)
os.close(0)
os.close(1)
code, = NUMBER.unpack(wire.recv(NUMBER.size, socket.MSG_WAITALL))
os._exit(code if code >= 0 else 128 - code)
"""


def script(folder: Path) -> Path:
    """An executable that stands for `stentor`, for those who start a program by its path."""
    path = folder / "stentor"
    path.write_text(SCRIPT.format(python=sys.executable, address=ready()))
    path.chmod(0o700)
    return path


class Process:
    """As `subprocess.Popen` with text in pipes for both outputs, or the second one in a file, and an empty input."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str], errors: Path | None = None) -> None:
        self.args = list(args)
        self.returncode: int | None = None
        out, to_out = os.pipe()
        err, to_err = os.pipe() if errors is None else (errors, os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600))
        with Path(os.devnull).open("rb") as nothing:
            self._child = _Child(args, env, None, (nothing.fileno(), to_out, to_err))
        os.close(to_out)
        os.close(to_err)
        self.pid = self._child.pid
        self.stdout, self.stderr = (open(file, encoding="utf-8") for file in (out, err))  # noqa: PTH123, SIM115

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            try:
                self.returncode = self._child.wait(timeout)
            except (TimeoutError, BlockingIOError) as error:
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from error
            self._child.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The rest of both outputs, once the process has ended."""
        found: dict[str, str] = {}

        def read(name: str) -> None:
            found[name] = getattr(self, name).read()

        readers = [threading.Thread(target=read, args=(name,), daemon=True) for name in ("stdout", "stderr")]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return found["stdout"], found["stderr"]

    def send_signal(self, number: int) -> None:
        # The server may have seen its end already and not have told it yet.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Child:
    """The connection over which the server forks one process and then tells how it ended."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str], cwd: Path | None, files: Sequence[int]) -> None:
        self._wire = socket.socket(socket.AF_UNIX)
        self._wire.connect(ready())
        wanted = json.dumps({"args": list(args), "env": dict(env), "cwd": str(cwd or Path.cwd())}).encode()
        socket.send_fds(self._wire, [NUMBER.pack(len(wanted))], list(files))
        self._wire.sendall(wanted)
        self.pid = self._number()

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.close()

    def wait(self, timeout: float | None) -> int:
        """Its exit code, negative for a signal. Raises TimeoutError, or BlockingIOError for a timeout of 0."""
        self._wire.settimeout(timeout)
        return self._number()

    def close(self) -> None:
        self._wire.close()

    def _number(self) -> int:
        data = self._wire.recv(NUMBER.size, socket.MSG_WAITALL)
        if len(data) != NUMBER.size:
            raise RuntimeError("the fork server has ended")
        return int(NUMBER.unpack(data)[0])


def _memory(content: bytes = b"") -> io.FileIO:
    made = io.FileIO(os.memfd_create("stentor-test"), "r+")
    made.write(content)
    made.seek(0)
    return made


def _content(file: io.FileIO) -> bytes:
    file.seek(0)
    return file.readall()


_started: list[tuple[str, subprocess.Popen[bytes]]] = []
_starting = threading.Lock()


def start(*words: str) -> tuple[str, subprocess.Popen[bytes]]:
    """Start the fork server of this process and of those forked from it later: its name, and itself. With the word
    `warm` it makes beforehand what each service would make, which pays after a dozen of them.
    """
    name = f"stentor-fork-{os.getpid()}"
    base = {
        name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or name.startswith("COVERAGE_")
    }
    base["OPENBLAS_NUM_THREADS"] = "1"  # else numpy starts a thread for each core when it is imported
    process = subprocess.Popen[bytes](
        [sys.executable, "-m", "tests.forkserver", name, *words],
        cwd=Path(__file__).parents[1],
        env=base,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    atexit.register(process.wait)
    atexit.register(process.stdin.close)
    _started.append((name, process))
    return name, process


def started() -> bool:
    return bool(_started)


def ready() -> str:
    """Where the fork server answers, once it does; started with the first run."""
    # Two threads that begin at the same time would start two of one name.
    with _starting:
        return _ready()


@cache
def _ready() -> str:
    name, process = _started[0] if _started else start()
    assert process.stdout is not None
    with process.stdout as answer:
        assert answer.readline() == b"ready\n"
    return f"\0{name}"


class Server:
    """In the server: forks, and tells each caller how its process ended."""

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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which then end the server
        self._selector = selectors.DefaultSelector()
        for file in (self._listener.fileno(), self._ended, sys.stdin.fileno()):
            self._selector.register(file, selectors.EVENT_READ)

    def serve(self) -> list[str] | None:
        """For as long as the tests live. In each forked process: its arguments."""
        while True:
            for key, _ in self._selector.select():
                if key.fd == sys.stdin.fileno():
                    self._kill_all()
                    return None
                if key.fd == self._ended:
                    os.read(self._ended, 4096)
                    self._reap()
                elif (args := self._fork()) is not None:
                    return args

    def _fork(self) -> list[str] | None:
        caller, _ = self._listener.accept()
        files: list[int] = []
        try:
            head, files, _, _ = socket.recv_fds(caller, NUMBER.size, 3)
            wanted = json.loads(caller.recv(NUMBER.unpack(head)[0], socket.MSG_WAITALL))
        except (OSError, struct.error, ValueError):  # the caller was killed before it had sent all of it
            caller.close()
            self._close(files)
            return None
        if child := os.fork():
            self._callers[child] = caller
            with contextlib.suppress(OSError):
                caller.sendall(NUMBER.pack(child))
            self._close(files)
            return None
        caller.close()
        self._become(wanted["env"], wanted["cwd"], files)
        return list(wanted["args"])

    def _close(self, files: list[int]) -> None:
        for file in files:
            os.close(file)

    def _become(self, env: dict[str, str], cwd: str, files: list[int]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
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
            with self._callers.pop(child) as caller, contextlib.suppress(OSError):
                caller.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))

    def _kill_all(self) -> None:
        for child in self._callers:
            os.kill(child, signal.SIGKILL)


def _import_all() -> None:
    import stentor

    for module in pkgutil.walk_packages(stentor.__path__, "stentor."):
        if not LEFT_OUT.search(module.name):
            importlib.import_module(module.name)
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _build_commands() -> None:
    """The command tree, which takes longer to build than most commands to run."""
    from stentor.cli.main import COMMANDS, LazyCommand, LazyGroup, app

    typer.main.get_command = cache(typer.main.get_command)
    root: Any = typer.main.get_command(app)
    context = root.context_class(root, **root.context_settings)
    for parameter in root.get_params(context):
        parameter.get_runtime_param()
    commands = {name: LazyCommand(name, target) for name, target in COMMANDS.items()}
    for command in commands.values():
        _build_parameters(command.loaded, context)
    LazyGroup.get_command = lambda self, ctx, cmd_name: commands.get(cmd_name)  # pyrefly: ignore[method-assign] - replaced for this process


def _build_parameters(command: Any, parent: Any) -> None:
    """What checks the values of a command's parameters, which typer would build in each process anew."""
    context = command.context_class(command, parent=parent, **command.context_settings)
    for parameter in command.get_params(context):
        parameter.get_runtime_param()
    for child in getattr(command, "commands", {}).values():
        _build_parameters(child, context)


def main() -> NoReturn:
    gc.disable()  # what is imported stays
    _import_all()
    _build_commands()
    certificates.read_once()
    if sys.argv[2:] == ["warm"]:
        warm.up()
    assert "grpc" not in sys.modules
    threads = [thread.name for thread in threading.enumerate()]
    assert len(list(Path("/proc/self/task").iterdir())) == 1, f"a fork has one thread, and these run: {threads}"
    gc.collect()
    gc.freeze()
    gc.enable()
    server = Server(sys.argv[1])
    os.write(1, b"ready\n")
    args = server.serve()
    if args is None:
        os._exit(0)
    sys.argv = ["stentor", *args]
    if hook := os.environ.pop(HOOK, ""):
        importlib.import_module(hook).install()
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
    threading._shutdown()  # pyrefly: ignore[missing-attribute] - private
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
