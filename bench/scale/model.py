"""How full each part of an installation is, from measured costs: utilisation is demand by capacity, 1 is full. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bench.figures import number
from bench.scale.installation import HOUR, Installation
from stentor.domains.execution.dispatch.task_hints import RENEW_SECONDS, RENEW_SECONDS_EACH

FLUSH_SECONDS = 0.01
"""A process sends what waits for others at most this often."""
DAY = 24 * HOUR
LOOK_TRIPS, END_TRIPS = 2, 16
"""Round trips to the server from taking a lock to its end: of a look, and of a task's last transaction."""
MESSAGE_CONNECTIONS = 2
"""Of each process: one listens, one sends."""
SESSIONS = 2
"""Of each process beside a pooler: one listens, one holds locks."""
Grow = Callable[[Installation, float], Installation]
Units = Mapping[str, float]
"""The costs by name, without units: seconds, bytes, numbers."""


@dataclass(frozen=True)
class Load:
    """What takes of a part, in the part's unit."""

    cause: str
    demand: float


@dataclass(frozen=True)
class Part:
    """`capacity` in the same unit as the demand of its loads."""

    name: str
    unit: str
    capacity: float
    loads: tuple[Load, ...]

    @property
    def demand(self) -> float:
        return sum(load.demand for load in self.loads)

    @property
    def utilisation(self) -> float:
        return self.demand / self.capacity

    @property
    def heaviest(self) -> Load:
        return max(self.loads, key=lambda load: load.demand)


def parts(whole: Installation, costs: Units) -> list[Part]:
    """Of one database and the processes on it, at the peak; the fullest first."""
    one = whole.part
    found = [build(one, costs) for build in _BUILDERS]
    return sorted(found, key=lambda part: part.utilisation, reverse=True)


def first(whole: Installation, costs: Units) -> Part:
    """The part that gives out first."""
    return parts(whole, costs)[0]


def named(whole: Installation, costs: Units, name: str) -> Part:
    return next(part for part in parts(whole, costs) if part.name == name)


def limit(whole: Installation, costs: Units, name: str | None = None, grow: Grow = Installation.times) -> float:
    """How many times as large the installation may be until the part (by default: the first) is full.

    0 when even a ten-thousandth is too much; 10,000 when it never is.
    """

    def full(factor: float) -> bool:
        grown = grow(whole, factor)
        part = first(grown, costs) if name is None else named(grown, costs, name)
        return part.utilisation > 1

    low, high = 1e-4, 1e4
    if full(low):
        return 0.0
    if not full(high):
        return high
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if full(middle) else (middle, high)
    return low


def to_all(one: Installation) -> float:
    """Payloads per second for all processes: who watches a task, and who runs agents."""
    renewals = one.working / max(RENEW_SECONDS, RENEW_SECONDS_EACH * one.working)
    return one.rate * one.watched + renewals


def to_one(one: Installation, costs: Units) -> float:
    """Payloads per second for one process each: hints of tasks, and what watchers are sent.

    A process that runs agents starts its tasks itself while it has room.
    """
    hints = 1 - one.working / one.gateways
    return one.rate * (hints + one.watched * (costs["task_commits"] + one.stream_messages))


def notifies(one: Installation, costs: Units) -> float:
    """Payloads per second that processes send each other; each sends at most a hundred."""
    return min(to_all(one) + to_one(one, costs), one.gateways / FLUSH_SECONDS)


def claims_in_vain(one: Installation, costs: Units) -> float:
    """Per second: tries of processes that were told of a task which another one has; each tries one at a time."""
    others = (one.working - 1) * one.told
    return min(one.rate * others, one.working / (costs["commit_seconds"] + LOOK_TRIPS * one.machine.round_trip))


def refreshed_rows(one: Installation) -> float:
    """Pairs of weight and trust that one refresh of one process reads: what changed since, and the overlap again."""
    return min(one.rate * (one.refresh + one.refresh_overlap), float(one.agents))


def postgres(one: Installation, costs: Units) -> Part:
    copies = 1 + one.replicas
    loads = (
        Load("the tasks themselves", one.rate * (task_cpu(one, costs) + costs["task_vacuum_cpu"])),
        Load("claims in vain", claims_in_vain(one, costs) * costs["vain_pg_cpu"]),
        Load("NOTIFY", 0.0 if one.nats else _notify_cpu(one, costs)),
        Load("refreshes of weights and trust", _refresh_cpu(one, costs) / copies),
        Load("polls of idle processes", one.gateways * costs["idle_pg_cpu"]),
    )
    return Part("CPU of PostgreSQL", "cores", one.machine.cores, loads)


def task_cpu(one: Installation, costs: Units) -> float:
    """CPU seconds of the server for a task."""
    return costs["pooled_task_pg_cpu" if one.pooled else "task_pg_cpu"]


def _notify_cpu(one: Installation, costs: Units) -> float:
    """The server wakes each connection that listens, whatever its channels are."""
    return notifies(one, costs) * (costs["notify_cpu"] + one.gateways * costs["notify_delivery_cpu"])


def _refresh_cpu(one: Installation, costs: Units) -> float:
    return one.gateways / one.refresh * refreshed_rows(one) * costs["refresh_row_pg_cpu"]


def wal(one: Installation, costs: Units) -> Part:
    demand = one.rate * costs["task_wal_bytes"]
    return Part("WAL", "MB/s", one.machine.wal_bytes / 1e6, (Load("the tasks themselves", demand / 1e6),))


def connections(one: Installation, costs: Units) -> Part:
    each = _connections(one, costs)
    loads = [Load(f"{number(each)} of each process", one.gateways * each)]
    if one.pooled:
        loads.append(Load("poolers", one.pool))
    return Part("connections", "connections", one.machine.connections, tuple(loads))


def connection_memory(one: Installation, costs: Units) -> Part:
    demand = connections(one, costs).demand * costs["connection_bytes"]
    return Part("memory of connections", "GB", one.machine.memory_bytes / 1e9, (Load("backends", demand / 1e9),))


def _connections(one: Installation, costs: Units) -> float:
    """Of each process, past the pooler if there is one; with NATS those for messages are not there."""
    if one.pooled:
        return SESSIONS - one.nats
    return costs["connections"] - (MESSAGE_CONNECTIONS if one.nats else 0)


def everything(one: Installation, costs: Units) -> Part:
    """Who takes the lock on everything waits for all that write, and all that come wait for him."""
    held = costs["exclusive_seconds"] + costs["commit_seconds"] + 2 * END_TRIPS * one.machine.round_trip
    return Part("the lock on everything", "s/s", 1.0, (Load("held, and waited for", one.rate * one.exclusive * held),))


def messages(one: Installation, costs: Units) -> Part:
    """One process at a time looks which message is the next; the others wait, and their writers with them."""
    held = costs["messages_seconds"] + LOOK_TRIPS * one.machine.round_trip
    demand = one.gateways * one.message_looks * held
    return Part("the lock on messages", "s/s", 1.0, (Load("looks of all processes", demand),))


def sequencer(one: Installation, costs: Units) -> Part:
    """One process numbers; its batches take CPU here and in the server, one after the other."""
    demand = one.rate * costs["task_events"]
    return Part("the sequencer", "events/s", 1 / costs["sequencer_event_cpu"], (Load("events", demand),))


def senders(one: Installation, costs: Units) -> Part:
    """NOTIFY takes a lock of the whole cluster until its commit is on the disk, so one follows the other."""
    cpu = costs["sender_cpu"] + costs["sender_delivery_cpu"] * one.gateways
    sent = 0.0 if one.nats else notifies(one, costs)
    flushes = sent * one.machine.flush if one.notify_flushed else 0.0
    loads = (Load("CPU of the sender", sent * cpu), Load("flush of its commit", flushes))
    return Part("NOTIFY one after the other", "s/s", 1.0, loads)


def busiest_agent(one: Installation, costs: Units) -> Part:
    """What is learned about an agent, and its counts, are held from the statement to the commit."""
    held = costs["commit_seconds"] + END_TRIPS * one.machine.round_trip
    demand = one.rate * one.busiest_agent * held
    return Part("the busiest agent", "s/s", 1.0, (Load("its endings", demand),))


def process(one: Installation, costs: Units) -> Part:
    """One process: its share of the tasks, and what it hears and reads of all others."""
    tries = claims_in_vain(one, costs) / one.working
    loads = (
        Load("its tasks", one.rate / one.gateways * costs["task_process_cpu"]),
        Load("claims in vain", tries * costs["vain_process_cpu"]),
        Load("messages of others", _received(one, costs) * costs["message_process_cpu"]),
        Load("refreshes of weights and trust", refreshed_rows(one) / one.refresh * costs["refresh_row_process_cpu"]),
        Load("its own polls", costs["idle_process_cpu"]),
    )
    return Part("CPU of a process", "cores", one.machine.process_cores, loads)


def _received(one: Installation, costs: Units) -> float:
    return to_all(one) + to_one(one, costs) / one.gateways


def memory(one: Installation, costs: Units) -> Part:
    demand = one.agents * costs["agent_bytes"] / 1e6
    return Part("memory of a process", "MB", one.machine.process_memory_bytes / 1e6, (Load("agents", demand),))


def disk(one: Installation, costs: Units) -> Part:
    """At the mean rate, for as long as tasks are kept."""
    demand = one.tasks_per_hour / HOUR * DAY * one.days * costs["task_disk_bytes"] / 1e12
    return Part("disk", "TB", one.machine.disk_bytes / 1e12, (Load(f"tasks of {one.days:.0f} days", demand),))


_BUILDERS: tuple[Callable[[Installation, Units], Part], ...] = (
    postgres,
    wal,
    connections,
    connection_memory,
    everything,
    messages,
    sequencer,
    senders,
    busiest_agent,
    process,
    memory,
    disk,
)


def values(costs: Mapping[str, object]) -> dict[str, float]:
    """Without units and methods."""
    return {name: float(getattr(cost, "value")) for name, cost in costs.items()}  # noqa: B009 - any record of a cost


def shares(part: Part) -> Iterator[tuple[str, float]]:
    """Of the part's capacity, by cause; the largest first."""
    for load in sorted(part.loads, key=lambda load: load.demand, reverse=True):
        yield load.cause, load.demand / part.capacity
