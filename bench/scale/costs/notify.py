"""A NOTIFY by the number of listeners, and what a message costs the process that receives it."""

from __future__ import annotations

import select
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy
import psycopg

from bench.scale.costs.kept import Cost, Costs
from bench.scale.costs.server import Server, cpu_of
from bench.scale.costs.tasks import process
from bench.sizes import Scale
from stentor.core.fanout.postgres import CHANNEL

LISTENERS = (1, 10, 50, 100)
RATE = 200


def measured(server: Server, folder: Path, scale: Scale) -> Costs:
    found = [_sent(server, number, scale.pick(300, 30)) for number in LISTENERS]
    slope, fixed = numpy.polyfit(LISTENERS, [cpu for cpu, _ in found], 1)
    how = f"CPU of the server per NOTIFY at {', '.join(map(str, LISTENERS))} listeners that wait: a straight line"
    wait = f"median of the sender's wait at {LISTENERS[-1]} listeners less that at {LISTENERS[0]}, per listener"
    waited = (found[-1][1] - found[0][1]) / (LISTENERS[-1] - LISTENERS[0])
    return {
        "notify_delivery_cpu": Cost(float(slope), "s", f"{how}, its slope"),
        "notify_cpu": Cost(max(0.0, float(fixed)), "s", f"{how}, its beginning"),
        "notify_wait": Cost(max(0.0, waited), "s", wait),
        **_received(server, folder, scale.pick(1_500, 200)),
    }


def _sent(server: Server, number: int, count: int) -> tuple[float, float]:
    """CPU seconds of the server for one NOTIFY, and the median of the sender's wait."""
    with ExitStack() as stack:
        open_one = lambda: stack.enter_context(psycopg.connect(server.url, autocommit=True))  # noqa: E731
        listeners, sender = [open_one() for _ in range(number)], open_one()
        for listener in listeners:
            listener.execute("listen bench")
        waits, before = [], server.cpu()
        for n in range(count):
            started = time.perf_counter()
            sender.execute("select pg_notify('bench', %s)", (f"{n} {'x' * 60}",))
            waits.append(time.perf_counter() - started)
            _drain(listeners)
        return (server.cpu() - before) / count, median(waits)


def _drain(listeners: list[psycopg.Connection[tuple[object, ...]]]) -> None:
    """Until each has its message."""
    left = {listener.fileno(): listener for listener in listeners}
    while left:
        for fd in select.select(list(left), [], [])[0]:
            left[fd].pgconn.consume_input()
            if left[fd].pgconn.notifies() is not None:
                del left[fd]


def _received(server: Server, folder: Path, count: int) -> Costs:
    """Told of tasks for an agent that works elsewhere, so that nothing is done but to note it."""
    with process(server, folder, 9) as service, psycopg.connect(server.url, autocommit=True) as sender:
        time.sleep(2)
        idle, seconds = cpu_of(service.process.pid), count / RATE
        time.sleep(seconds)
        before = cpu_of(service.process.pid)
        for n in range(count):
            sender.execute("select pg_notify(%s, %s)", (CHANNEL, f'["bench",[["q","agent-{n % 50}",false]]]'))
            time.sleep(1 / RATE)
        used = cpu_of(service.process.pid) - before - (before - idle)
    how = f"CPU of a process for each of {count} messages at {RATE}/s, without that of an idle one"
    return {"message_process_cpu": Cost(max(0.0, used / count), "s", how)}
