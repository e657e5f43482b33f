"""How large an installation is, and what it runs on. Pure: the model's input."""

from __future__ import annotations

from dataclasses import dataclass, replace

HOUR = 3_600.0


@dataclass(frozen=True)
class Machine:
    """What PostgreSQL runs on, and a process of Stentor: assumptions, not measurements."""

    cores: float = 32.0
    wal_bytes: float = 400e6
    """Bytes of WAL that the disk keeps up with, per second."""
    flush: float = 0.0005
    """Seconds of a commit's flush, on a good disk of a network."""
    round_trip: float = 0.0003
    """Seconds between a process and its database; what was measured ran on one machine."""
    connections: float = 5_000.0
    """Beyond a few thousand a snapshot of PostgreSQL grows dear."""
    memory_bytes: float = 64e9
    """For its connections."""
    disk_bytes: float = 20e12
    process_cores: float = 1.0
    """A process of Stentor has one event loop."""
    process_memory_bytes: float = 1e9


@dataclass(frozen=True)
class Installation:
    """`gateways` take requests; `working` of them run agents that live in the service. Times in seconds."""

    gateways: int = 1_000
    working: int = 1_000
    agents: int = 100_000
    tasks_per_hour: float = 1_000_000.0
    peak: float = 2.0
    """The busiest minutes over the mean."""
    watched: float = 0.1
    """Share of the tasks that somebody follows on another process."""
    stream_messages: float = 20.0
    """Messages between processes for the tokens of one watched task."""
    exclusive: float = 0.02
    """Transactions with the lock on everything, per task: approvals, messages, notes of the memory."""
    busiest_agent: float = 0.01
    """Share of the tasks that one agent has."""
    tenants: int = 100
    databases: int = 1
    """Between which the tenants, and so the gateways, are parted."""
    replicas: int = 0
    """Copies of each database for what may be a moment old."""
    nats: bool = False
    notify_flushed: bool = True
    """Whether a NOTIFY waits for the disk, as it does by default."""
    refresh: float = 1.0
    """SERVICE_SNAPSHOT_REFRESH_SECONDS."""
    refresh_overlap: float = 5.0
    """How far each refresh looks back."""
    told: float = 0.0
    """Share of the working processes that a task's hint has look for it; 0 is a single one, as measured."""
    message_looks: float = 0.01
    """How often a second each process takes the lock on messages: when it has seen that one is due."""
    pooled: bool = False
    """Whether all but the sessions of each process go through a pooler."""
    pool: float = 200.0
    """Connections of the poolers to a database."""
    days: float = 30.0
    """How long tasks are kept."""
    machine: Machine = Machine()

    @property
    def rate(self) -> float:
        """Tasks per second at the peak, in all."""
        return self.tasks_per_hour / HOUR * self.peak

    @property
    def part(self) -> Installation:
        """What one of the databases has to carry."""
        n = min(self.databases, self.tenants)
        return replace(
            self,
            gateways=max(1, round(self.gateways / n)),
            working=max(1, round(self.working / n)),
            agents=max(1, round(self.agents / n)),
            tasks_per_hour=self.tasks_per_hour / n,
            tenants=max(1, round(self.tenants / n)),
            busiest_agent=min(1.0, self.busiest_agent * n),
            databases=1,
        )

    def times(self, factor: float) -> Installation:
        """The same installation, that many times as large; the machines stay."""
        return replace(
            self,
            gateways=max(1, round(self.gateways * factor)),
            working=max(1, round(self.working * factor)),
            agents=max(1, round(self.agents * factor)),
            tasks_per_hour=self.tasks_per_hour * factor,
            busiest_agent=min(1.0, self.busiest_agent / factor),
        )

    def busier(self, factor: float) -> Installation:
        """The same processes and agents with that many times as many tasks."""
        return replace(self, tasks_per_hour=self.tasks_per_hour * factor)
