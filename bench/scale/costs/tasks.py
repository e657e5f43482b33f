"""A task at a low rate, as each of a thousand gateways has it, and what other processes do about it; idle processes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.scale.costs.kept import Cost, Costs
from bench.scale.costs.server import Server, Work, cpu_of
from bench.service import Service, serving
from bench.sizes import Scale
from bench.tasks.throughput import load
from stentor.core.db.readers import IDLE_SECONDS

PROCESSES = 3
RATE = 10
"""Tasks a second: so few that hardly two share a commit."""
EVERYTHING = "pg_advisory_xact_lock(7305000)"


@dataclass(frozen=True)
class Used:
    """In a stretch of `seconds`: what the server did, and the CPU seconds of all processes of Stentor."""

    seconds: float
    server: Work
    processes: float


def measured(server: Server, folder: Path, scale: Scale) -> Costs:
    count = scale.pick(210, 30)
    with ExitStack() as stack:
        first = stack.enter_context(process(server, folder, 0))
        load(first, "paced", count // 3, RATE)  # warm
        costs = _statements(server, first, count // 3)
        grown, events = _size(server), _events(server)
        alone = _loaded(server, [first], count)
        costs |= _growth(server, grown, count)
        time.sleep(scale.pick(IDLE_SECONDS + 5, 0))
        how = "pg_stat_activity, one process some time after its work"
        costs["connections"] = Cost(server.connections(), "connections", how)
        costs["task_events"] = Cost((_events(server) - events) / count, "events", f"of the run log, {count} tasks")
        services = [first, *(stack.enter_context(process(server, folder, n)) for n in range(1, PROCESSES))]
        time.sleep(3)
        idle = _idle(server, services, scale.pick(20.0, 3.0))
        together = _loaded(server, services, count)
        costs |= _of_idle(server, idle, services, scale)
    costs |= _of_tasks(alone, idle, count)
    costs["pooled_task_pg_cpu"] = _pooled(server, folder, idle, count)
    return costs | _together(together, count)


@contextmanager
def process(server: Server, folder: Path, number: int, roles: str = "gateway,worker", **more: str) -> Iterator[Service]:
    own = folder / f"process{number}"
    own.mkdir()
    settings = {"SERVICE_DATABASE_URL": server.url, "SERVICE_MEMORY": "0", "SERVICE_ROLES": roles, **more}
    with serving(own / "data", settings) as service:
        yield service


def _used(server: Server, services: Sequence[Service]) -> Used:
    return Used(time.monotonic(), server.look(), sum(cpu_of(service.process.pid) for service in services))


def _since(server: Server, services: Sequence[Service], before: Used) -> Used:
    now = _used(server, services)
    return Used(now.seconds - before.seconds, now.server - before.server, now.processes - before.processes)


def _loaded(server: Server, services: Sequence[Service], count: int) -> Used:
    before = _used(server, services)
    load(services[0], "paced", count, RATE)
    time.sleep(0.5)
    return _since(server, services, before)


def _idle(server: Server, services: Sequence[Service], seconds: float) -> Used:
    before = _used(server, services)
    time.sleep(seconds)
    return _since(server, services, before)


def _statements(server: Server, service: Service, count: int) -> Costs:
    with server.statements() as found:
        load(service, "paced", count, RATE)
    polls = sum(text.startswith("begin isolation") for text in found)
    how = f"statements in the server's log while {count} tasks run at {RATE}/s in one process"
    return {
        "task_statements": Cost((len(found) - 4 * polls) / count, "statements", f"{how}, without read-only ones"),
        "task_commits": Cost(sum(text == "commit" for text in found) / count, "commits", how),
        "task_notifies": Cost(sum("pg_notify" in text for text in found) / count, "NOTIFY", how),
        "task_exclusive": Cost(
            sum(EVERYTHING in text for text in found) / count, "times", f"lock on everything; {how}"
        ),
    }


def _of_tasks(alone: Used, idle: Used, count: int) -> Costs:
    idle_pg, idle_process = _rates(idle)
    how = f"CPU seconds of {count} tasks at {RATE}/s in one process, without those of an idle one"
    wal = f"pg_current_wal_lsn() over {count} tasks, full pages after a checkpoint left out"
    return {
        "task_pg_cpu": Cost((alone.server.cpu - idle_pg * alone.seconds) / count, "s", how),
        "task_process_cpu": Cost((alone.processes - idle_process * alone.seconds) / count, "s", how),
        "task_wal_bytes": Cost(alone.server.wal_bytes / count, "B", wal),
    }


def _pooled(server: Server, folder: Path, idle: Used, count: int) -> Cost:
    """As behind a pooler: statements are not prepared, and each transaction brings its settings."""
    with process(server, folder, 8, SERVICE_DATABASE_SESSION_URL=server.url) as service:
        load(service, "paced", count // 3, RATE)  # warm
        used = _loaded(server, [service], count)
    cpu = (used.server.cpu - _rates(idle)[0] * used.seconds) / count
    return Cost(
        cpu, "s", f"as task_pg_cpu, with transactions as behind a pooler, and without the pooler; {count} tasks"
    )


def _together(used: Used, count: int) -> Costs:
    """What the model has to find again."""
    how = f"{PROCESSES} processes together, {count} tasks sent to one of them at {RATE}/s"
    return {
        "check_rate": Cost(count / used.seconds, "tasks/s", how),
        "check_pg_cpu": Cost(used.server.cpu / used.seconds, "s/s", f"CPU of the server; {how}"),
        "check_process_cpu": Cost(used.processes / used.seconds / PROCESSES, "s/s", f"CPU of a process, mean; {how}"),
    }


def _of_idle(server: Server, idle: Used, services: Sequence[Service], scale: Scale) -> Costs:
    pg, own = _rates(idle)
    seconds = scale.pick(10.0, 2.0)
    with server.statements() as found:
        time.sleep(seconds)
    how = f"{PROCESSES} processes without work, {idle.seconds:.0f} s"
    per = len(services) * (seconds + 0.3)
    log = f"the server's log, {PROCESSES} processes without work"
    return {
        "idle_pg_cpu": Cost(pg, "s/s", how),
        "idle_process_cpu": Cost(own, "s/s", how),
        "idle_statements": Cost(len(found) / per, "/s", log),
        "idle_writes": Cost(sum(text == "commit" for text in found) / per, "/s", f"transactions to write; {log}"),
        "connection_bytes": Cost(1e6 * server.backend_mb(), "B", "private pages of a backend, mean (smaps_rollup)"),
    }


def _rates(idle: Used) -> tuple[float, float]:
    """Of one process: CPU seconds of the server, and its own, in a second."""
    per = idle.seconds * PROCESSES
    return idle.server.cpu / per, idle.processes / per


def _growth(server: Server, before: float, count: int) -> Costs:
    """Rows and indexes on the disk, before vacuum has made room again; and the vacuum itself."""
    after, cpu = _size(server), server.vacuumed()
    how = f"tables and indexes after {count} tasks more, without what vacuum frees"
    return {
        "task_disk_bytes": Cost((after - before) / count, "B", how),
        "task_vacuum_cpu": Cost(
            cpu / (count + 2 * (count // 3)), "s", "CPU of the server for a vacuum of all tables, per task"
        ),
    }


def _size(server: Server) -> float:
    where = "relkind = 'r' and relnamespace = 'public'::regnamespace"
    return float(server.ask(f"select sum(pg_total_relation_size(oid)) from pg_class where {where}")[0])


def _events(server: Server) -> int:
    return int(server.ask("select count(*) from events")[0])
