"""`--processes N`: the tests run in N processes, forked once all tests are collected.

pytest-xdist starts its processes anew, and each imports and collects everything for itself, which for these tests takes
8 s of processor time in each. Here the first process collects, the others take groups of tests from a list, and send
back the reports. Groups are those of the marker `together`; they are begun in the order of the collected tests, and the
tests of one run in one process. A process that dies fails the test that it ran; another one goes on with its group.
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import NoReturn

import pytest
from _pytest.assertion import rewrite
from _pytest.capture import CaptureManager, FDCapture
from _pytest.config import create_terminal_writer
from _pytest.runner import CallInfo
from _pytest.terminal import TerminalReporter

NUMBER = struct.Struct("i")
PROCESS = "STENTOR_TEST_PROCESS"
"""In the environment of each forked process: its number."""


def forked() -> bool:
    """Whether this process is one of several of the run."""
    return PROCESS in os.environ


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Returns None, so that pytest runs the tests itself, where there is nothing to divide."""
    option = session.config.option
    if option.processes < 2 or option.collectonly or option.usepdb or session.testsfailed or not session.items:
        return None
    threads = len(list(Path("/proc/self/task").iterdir())) if Path("/proc/self/task").exists() else 1
    if threads > 1:
        # A fork has one thread, and a lock that another one held stays locked in it.
        sys.stderr.write(f"The tests run in one process, because an import left {threads} threads.\n")
        return None
    Run(session).drive(option.processes)
    return True


def compile_ahead(folder: Path) -> None:
    """In a process of its own, beside the collection and from the other end: write the compiled tests that are missing,
    as they are after a checkout.
    """
    missing = [
        file
        for file in sorted(folder.rglob("test_*.py"), reverse=True)
        if not (rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)).exists()
    ]
    if not missing:
        return
    if pid := os.fork():
        atexit.register(os.waitpid, pid, 0)
        return
    for file in missing:
        with suppress(BaseException):  # the collection tells
            importlib.import_module(".".join((folder.name, *file.relative_to(folder).with_suffix("").parts)))
    os._exit(0)


class Run:
    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._hook = session.config.hook
        self._units = list(_units(session.items))
        self._unit_of = {item: number for number, unit in enumerate(self._units) for item in unit}
        # A file's place is shared by all forks of a process: who reads a number has taken that group. Under a lock,
        # since the kernel reads and moves the place of such a file in two steps; a process that dies leaves it free.
        self._waiting = os.memfd_create("units")
        os.write(self._waiting, b"".join(NUMBER.pack(number) for number in range(len(self._units))))
        os.lseek(self._waiting, 0, os.SEEK_SET)
        self._at = mmap.mmap(-1, mmap.PAGESIZE)  # where each process is: shared by the forks as well
        self._children: dict[Connection, tuple[int, int]] = {}
        # Made before the forks, or each would make one: what they share lies in it.
        tmp_path_factory(session.config).getbasetemp()

    def drive(self, processes: int) -> None:
        """Start the processes, and report what they report until the last has ended."""
        reporter = self._session.config.pluginmanager.getplugin("terminalreporter")
        if isinstance(reporter, TerminalReporter):
            reporter.showfspath = False  # reports of several files come mixed
        try:
            for number in range(min(processes, len(self._units))):
                NUMBER.pack_into(self._at, number * NUMBER.size, -1)
                self._fork(number, [])
            while self._children:
                for wire in wait(list(self._children)):
                    assert isinstance(wire, Connection)
                    self._receive(wire)
                if self._session.shouldfail or self._session.shouldstop:
                    self._take_nothing_more()
        finally:
            self._take_nothing_more()
            for wire, (_, pid) in self._children.items():
                wire.close()
                os.waitpid(pid, 0)
            os.close(self._waiting)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _take_nothing_more(self) -> None:
        with self._alone():
            os.lseek(self._waiting, 0, os.SEEK_END)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        fcntl.lockf(self._waiting, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._waiting, fcntl.LOCK_UN)

    def _fork(self, number: int, rest: Sequence[int]) -> None:
        receiver, sender = Pipe(duplex=False)
        if pid := os.fork():
            sender.close()
            self._children[receiver] = number, pid
            return
        status = 1
        try:
            for wire in (receiver, *self._children):
                wire.close()
            os.environ[PROCESS] = str(number)
            Child(self._session, number, sender, self._at).work(self._taken(rest))
            status = 0
        except (KeyboardInterrupt, BrokenPipeError):
            pass  # the first process says so
        except BaseException:  # noqa: BLE001 - whatever it was, this process is not the one that goes on
            _show(self._session.config, traceback.format_exc())
        finally:
            _end(status)

    def _taken(self, rest: Sequence[int]) -> Iterator[Sequence[int]]:
        if rest:
            yield rest
        while taken := self._take():
            yield self._units[NUMBER.unpack(taken)[0]]

    def _take(self) -> bytes:
        with self._alone():
            return os.read(self._waiting, NUMBER.size)

    def _receive(self, wire: Connection) -> None:
        try:
            nodeid, location, reports = pickle.loads(wire.recv_bytes())
        except (EOFError, OSError):  # OSError: in the middle of a report
            self._ended(wire)
            return
        for data in reports:
            report = self._hook.pytest_report_from_serializable(config=self._session.config, data=data)
            self._hook.pytest_runtest_logreport(report=report)
        self._hook.pytest_runtest_logfinish(nodeid=nodeid, location=location)

    def _ended(self, wire: Connection) -> None:
        number, pid = self._children.pop(wire)
        wire.close()
        _, status = os.waitpid(pid, 0)
        if not status:
            return
        at = NUMBER.unpack_from(self._at, number * NUMBER.size)[0]
        assert at >= 0, "a process ended before its first test"
        item = self._session.items[at]
        text = f"the process of this test ended with {os.waitstatus_to_exitcode(status)}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        self._hook.pytest_runtest_logreport(report=report)
        unit = self._units[self._unit_of[at]]
        self._fork(number, unit[unit.index(at) + 1 :])


class Quiet:
    """Takes the place of the reporter in a forked process: what a plugin would write to the terminal is captured."""

    def __init__(self, config: pytest.Config) -> None:
        self._tw = create_terminal_writer(config, sys.stderr)


class Child:
    """In a forked process: runs groups of tests and sends their reports."""

    def __init__(self, session: pytest.Session, number: int, wire: Connection, at: mmap.mmap) -> None:
        self._session = session
        self._place = number * NUMBER.size
        self._wire = wire
        self._at = at
        self._reports: list[object] = []
        # Where the handler is the interpreter's own, asyncio puts its own in place around each coroutine, which costs
        # a millisecond for each test.
        signal.signal(signal.SIGINT, _interrupt)
        atexit._clear()  # what is registered so far is for the first process to do
        config = session.config
        config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(Quiet(config), "terminalreporter")
        config.pluginmanager.register(self)
        _capture_apart(config)
        factory = tmp_path_factory(config)
        factory._basetemp = factory.getbasetemp() / f"process{number}"
        factory._basetemp.mkdir(mode=0o700, exist_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        self._reports.append(config.hook.pytest_report_to_serializable(config=config, report=report))

    def work(self, units: Iterator[Sequence[int]]) -> None:
        """The fixtures of the session stay for the groups to come, those of modules end with a group."""
        item = None
        try:
            for unit in units:
                for at, following in zip(unit, [*unit[1:], None], strict=True):
                    NUMBER.pack_into(self._at, self._place, at)
                    item = self._session.items[at]
                    next_one = self._session if following is None else self._session.items[following]
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_one)
                    self._send(item)
        finally:
            self._finish(item)

    def _finish(self, item: pytest.Item | None) -> None:
        call = CallInfo.from_call(lambda: self._session._setupstate.teardown_exact(None), "teardown")
        if item is not None and call.excinfo is not None:
            report = item.ihook.pytest_runtest_makereport(item=item, call=call)
            item.ihook.pytest_runtest_logreport(report=report)
            self._send(item)

    def _send(self, item: pytest.Item) -> None:
        self._wire.send_bytes(pickle.dumps((item.nodeid, item.location, self._reports)))
        self._reports.clear()


def _units(items: Sequence[pytest.Item]) -> Iterator[list[int]]:
    """The places of the tests that go together, by their first."""
    units: dict[object, list[int]] = {}
    for at, item in enumerate(items):
        marker = item.get_closest_marker("together")
        units.setdefault(marker.args[0] if marker else item, []).append(at)
    yield from units.values()


def tmp_path_factory(config: pytest.Config) -> pytest.TempPathFactory:
    return config._tmp_path_factory  # pyrefly: ignore[missing-attribute] - private


def _capture_apart(config: pytest.Config) -> None:
    """Let this process capture into files of its own. The objects stay, because modules hold `sys.stderr`."""
    manager = config.pluginmanager.getplugin("capturemanager")
    capturing = manager._global_capturing if isinstance(manager, CaptureManager) else None
    for one in (capturing.out, capturing.err) if capturing else ():
        if isinstance(one, FDCapture):
            file = os.memfd_create("captured")
            os.dup2(file, one.tmpfile.fileno())
            os.dup2(file, one.targetfd)
            os.close(file)


def _show(config: pytest.Config, text: str) -> None:
    manager = config.pluginmanager.getplugin("capturemanager")
    if isinstance(manager, CaptureManager):
        manager.suspend_global_capture()
    sys.stderr.write(text)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _end(status: int) -> NoReturn:
    """Without taking down everything that was imported, which takes longer than most tests."""
    threading._shutdown()  # pyrefly: ignore[missing-attribute] - private
    atexit._run_exitfuncs()
    os._exit(status)
