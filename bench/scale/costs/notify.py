"""A NOTIFY by the number of listeners, and what a message costs the process that receives it."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy
import psycopg

from bench.scale.costs.kept import Cost, Costs
from bench.scale.costs.server import Server, cpu_of
from bench.scale.costs.tasks import process
from bench.sizes import Scale
from stentor.core.fanout.postgres import CHANNEL

LISTENERS = (1, 10, 50, 100)
MESSAGES, HINTS = 200, 50
"""Sent per second: what a process only notes, and what makes it look."""


def measured(server: Server, folder: Path, scale: Scale) -> Costs:
    found = [_sent(server, number, scale.pick(300, 30)) for number in LISTENERS]
    slope, fixed = _line([cpu for cpu, _ in found])
    own_slope, own_fixed = _line([own for _, own in found])
    how = f"CPU of the server per NOTIFY at {', '.join(map(str, LISTENERS))} listeners that wait: a straight line"
    own = how.replace("the server", "the sender's connection")
    return {
        "notify_delivery_cpu": Cost(slope, "s", f"{how}, its slope"),
        "notify_cpu": Cost(fixed, "s", f"{how}, its beginning"),
        "sender_delivery_cpu": Cost(own_slope, "s", f"{own}, its slope"),
        "sender_cpu": Cost(own_fixed, "s", f"{own}, its beginning"),
        **_received(server, folder, scale),
    }


def _line(values: list[float]) -> tuple[float, float]:
    slope, fixed = numpy.polyfit(LISTENERS, values, 1)
    return max(0.0, float(slope)), max(0.0, float(fixed))


def _sent(server: Server, number: int, count: int) -> tuple[float, float]:
    """CPU seconds of the server for one NOTIFY, and those of the connection that sends it."""
    with ExitStack() as stack:
        opened = [stack.enter_context(psycopg.connect(server.url, autocommit=True)) for _ in range(number + 1)]
        sender, listeners = opened[0], opened[1:]
        for listener in listeners:
            listener.execute("listen bench")
        pid = sender.info.backend_pid
        before, own = server.cpu(), cpu_of(pid)
        for n in range(count):
            sender.execute("select pg_notify('bench', %s)", (f"{n} {'x' * 60}",))
            _drain(listeners)
        return (server.cpu() - before) / count, (cpu_of(pid) - own) / count


def _drain(listeners: list[psycopg.Connection[tuple[object, ...]]]) -> None:
    """Until each has its message."""
    left = {listener.fileno(): listener for listener in listeners}
    while left:
        for fd in select.select(list(left), [], [])[0]:
            left[fd].pgconn.consume_input()
            if left[fd].pgconn.notifies() is not None:
                del left[fd]


def _received(server: Server, folder: Path, scale: Scale) -> Costs:
    """Told of tasks for an agent that works elsewhere, which is only noted; then for one inside, which has it look."""
    noted, looked = scale.pick(1_500, 200), scale.pick(600, 60)
    with process(server, folder, 9) as service:
        time.sleep(2)
        _, message = _told(server, service.process.pid, noted, MESSAGES, "false")
        claim, hint = _told(server, service.process.pid, looked, HINTS, "true")
    how = f"CPU of a process for each of {noted} messages at {MESSAGES}/s, without that of an idle one"
    try_ = f"for each of {looked} hints of a task that another process has, at {HINTS}/s, without that of an idle one"
    return {
        "message_process_cpu": Cost(message, "s", how),
        "vain_process_cpu": Cost(max(0.0, hint - message), "s", f"CPU of a process {try_} and without the message"),
        "vain_pg_cpu": Cost(claim, "s", f"CPU of the server {try_}, the NOTIFY included"),
    }


def _told(server: Server, pid: int, count: int, rate: int, inside: str) -> tuple[float, float]:
    """CPU seconds of the server and of the process for one message, without what they use when nothing comes."""
    idle = _during(server, pid, lambda: time.sleep(count / rate))
    with psycopg.connect(server.url, autocommit=True) as sender:

        def send() -> None:
            for n in range(count):
                sender.execute("select pg_notify(%s, %s)", (CHANNEL, f'["bench",[["q","agent-{n % 50}",{inside}]]]'))
                time.sleep(1 / rate)

        busy = _during(server, pid, send)
    lasted = busy[2] / idle[2]
    return max(0.0, busy[0] - lasted * idle[0]) / count, max(0.0, busy[1] - lasted * idle[1]) / count


def _during(server: Server, pid: int, what: Callable[[], None]) -> tuple[float, float, float]:
    """CPU seconds of the server and of the process, and seconds."""
    before = server.cpu(), cpu_of(pid), time.monotonic()
    what()
    return server.cpu() - before[0], cpu_of(pid) - before[1], time.monotonic() - before[2]
