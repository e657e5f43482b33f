"""The workers that run in this program: a signal stops all of them, and so does the end of the main thread.

Also what they need of the program: the signals that stop them, its logging, and how it prints an error.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - see `_register_atexit` below
import logging
import os
import signal
import sys
import threading
import time
from types import TracebackType
from typing import Protocol

REPEAT_SECONDS = 1.0
"""How long another Ctrl-C changes nothing: it may be the same one, which a program that started this one passes on."""
MAIN_ENDED = "worker: stopping, because the main thread of the program has ended"
log = logging.getLogger(__name__)


class Running(Protocol):
    """What this module needs of a worker."""

    def stop(self) -> None: ...

    def count_tasks(self) -> int: ...


_threads: dict[Running, threading.Thread] = {}
_main_ended = threading.Event()


def add(worker: Running) -> None:
    """Note that a worker runs in this thread. It is stopped at once if the main thread has ended."""
    _threads[worker] = threading.current_thread()
    if _main_ended.is_set():
        log.info(MAIN_ENDED)
        worker.stop()


def remove(worker: Running) -> None:
    _threads.pop(worker, None)


def stop_all() -> None:
    for worker in list(_threads):
        worker.stop()


def wait_for_all(own: Running | None = None) -> None:
    """Wait for the tasks of all workers, and for all workers but `own` to end; let another Ctrl-C end the program."""
    workers = list(_threads)
    tasks = sum(worker.count_tasks() for worker in workers)
    if tasks:
        log.info("worker: stopping when its tasks end; another Ctrl-C ends it at once tasks=%d", tasks)
    pauses = 0
    while any(worker.count_tasks() or (worker is not own and _holds_program(worker)) for worker in workers):
        time.sleep(REPEAT_SECONDS / 10)
        pauses += 1
        if pauses == 10:
            # From now on a Ctrl-C is another one than the first. Not left to the worker's handler of signals, which
            # runs only between two instructions of the main thread. A second SIGTERM changes nothing: programs such as
            # `timeout` send each twice.
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def list_stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a worker, among them the one of a terminal that closes.

    Not if `nohup` ignores it, or if the program handles it, for example to read its settings again.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    # Windows has no SIGHUP.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        numbers.append(signal.SIGHUP)
    return numbers


def configure_logging() -> None:
    """Log to standard error if the program has not configured logging."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        # Some frameworks configure logging during the first task; each line would then appear twice.
        handler.addFilter(lambda record: not logging.getLogger().handlers)
        logging.getLogger("stentor_worker").addHandler(handler)
        logging.getLogger("stentor_worker").setLevel(logging.INFO)


def print_plainly(error: Exception, text: str) -> None:
    """Have Python print this text instead of a traceback if the error ends the program.

    A program that has an excepthook of its own keeps it.
    """
    error.plain_text = text  # type: ignore[attr-defined]
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_uncaught


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    text = getattr(error, "plain_text", None)
    if text is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(text, file=sys.stderr)  # noqa: T201 - in place of Python's own text


def _holds_program(worker: Running) -> bool:
    """Return whether Python waits for the thread of a worker before it ends the program."""
    thread = _threads.get(worker)
    return thread is not None and not thread.daemon


def _stop_with_main_thread() -> None:
    """Stop the workers that the main thread has left running, and wait for their tasks."""
    _main_ended.set()
    if _threads:
        log.info(MAIN_ENDED)
        stop_all()
        # The first one may have ended the main thread.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        wait_for_all()


# Registered after the thread pools of Python, which are imported above, so called before they refuse work, including
# the one of asyncio.to_thread. `atexit` would be too late: it runs when all threads have ended.
threading._register_atexit(_stop_with_main_thread)  # type: ignore[attr-defined]
if hasattr(os, "register_at_fork"):
    # The threads of the workers are not in the new process.
    os.register_at_fork(after_in_child=_threads.clear)
