"""Programs of their own: the end of one whose workers run in several threads, and what one logs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from worker_service import TIMEOUT_S, Reply, Service, run_service

ENDED_MAIN = """
import asyncio, multiprocessing, sys, threading
from stentor_worker import Worker

worker = Worker(sys.argv[1], "key", "agent")

def run_process():
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()
    return process.is_alive()

@worker.handler
async def work(task):
    return await asyncio.to_thread(run_process)

threading.Thread(target=worker.run).start()
sys.stdin.read()
"""
TWO_WORKERS = """
import sys, threading
from stentor_worker import Worker

idle, busy = (Worker(url, "key", "agent") for url in sys.argv[1:])
idle.handler(lambda task: None)
busy.handler(lambda task: threading.Event().wait())
thread = threading.Thread(target=busy.run)
thread.start()
idle.run()
thread.join()
"""
CONFIGURES_LOGGING = """
import logging, sys
from stentor_worker import Worker

worker = Worker(sys.argv[1], "key", "agent")

@worker.handler
def work(task):
    logging.basicConfig(level=logging.INFO)

worker.run()
"""
HANG_S = 5 * TIMEOUT_S


@contextmanager
def start(script: str, *urls: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program. One that hangs is killed, so that a test that reads its output to the end fails."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script, *urls], stdin=pipe, stderr=pipe, text=True) as program:
        limit = threading.Timer(HANG_S, program.kill)
        limit.start()
        try:
            yield program
        finally:
            limit.cancel()
            program.kill()


@pytest.mark.skipif((3, 12) <= sys.version_info < (3, 12, 2), reason="starts no thread when the main thread has ended")
def test_a_worker_does_what_it_has_claimed_when_the_main_thread_ends_and_ends_the_program() -> None:
    claimed, ended = threading.Event(), threading.Event()

    def reply(verb: str) -> Reply:
        if verb == "claims":
            claimed.set()
            if not ended.wait(TIMEOUT_S):
                return 401, {}
        return 200, {}

    with run_service(Service(tasks=1)) as service:
        service.reply = reply
        with start(ENDED_MAIN, service.url) as program:
            assert program.stdin is not None
            assert program.stderr is not None
            assert claimed.wait(TIMEOUT_S)
            program.stdin.close()
            lines = []
            for line in program.stderr:
                lines.append(line)
                if "main thread of the program has ended" in line:
                    ended.set()
            assert program.wait(TIMEOUT_S) == 0, lines
        assert service.reports == [("t1", "complete", {"epoch": 1, "result": False})], lines
        assert service.requests[-1].endswith("/leave")


def test_another_interrupt_ends_a_program_whose_worker_in_the_main_thread_has_no_task() -> None:
    polled = threading.Event()

    def reply(verb: str) -> Reply:
        if verb == "claims":
            polled.set()
        return 200, {}

    with run_service(Service(tasks=0)) as idle, run_service(Service(tasks=1)) as busy:
        idle.reply = reply
        with start(TWO_WORKERS, idle.url, busy.url) as program:
            assert program.stderr is not None
            assert polled.wait(TIMEOUT_S)
            assert busy.wait_until(lambda: busy.claimed == 1)
            lines = []
            is_over = threading.Event()

            def interrupt() -> None:
                while not is_over.wait(0.1):
                    program.send_signal(signal.SIGINT)

            repeats = threading.Thread(target=interrupt)
            repeats.start()
            lines = list(program.stderr)
            is_over.set()
            repeats.join()
            assert program.wait(TIMEOUT_S) == -signal.SIGINT, lines
        assert "stopping when its tasks end; another Ctrl-C ends it at once tasks=1" in lines[-1]


def test_each_line_is_logged_once_when_a_handler_configures_logging() -> None:
    with run_service(Service(tasks=2)) as service, start(CONFIGURES_LOGGING, service.url) as program:
        assert service.wait_until(lambda: len(service.reports) == 2)
        program.send_signal(signal.SIGINT)
        _, lines = program.communicate(timeout=TIMEOUT_S)
    assert [lines.count(f"task reported task_id={task}") for task in ("t1", "t2")] == [1, 1], lines
