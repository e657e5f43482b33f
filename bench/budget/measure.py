"""Runs tasks and chats on services that are left alone, counted and sampled, and puts the three together."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.budget import shim, wal
from bench.budget.parts import TRANSACTIONS, of_table
from bench.budget.probed import Probed, Totals, probed
from bench.llm import chats, gateways
from bench.sizes import Scale, say
from bench.tasks.throughput import CONCURRENCY, load

RATE = 20
"""Tasks a second when they run one at a time: far enough apart that two never share a commit."""
IDLE_SECONDS = 2.0
Sums = defaultdict[str, float]


@dataclass(frozen=True)
class Case:
    """A kind of work: `send` has it done so many times, and returns when all is done."""

    name: str
    send: Callable[[Probed, int], object]
    full: int
    quick: int


CASES = (
    Case("task, one at a time", lambda probed, count: load(probed.service, "paced", count, RATE), 200, 20),
    Case("task, 32 at once", lambda probed, count: load(probed.service, "closed", count, CONCURRENCY), 2_000, 100),
    Case("chat, one at a time", lambda probed, count: chats.load(probed.way, count, 1), 400, 30),
    Case("chat, 32 at once", lambda probed, count: chats.load(probed.way, count, CONCURRENCY), 2_000, 100),
)
TASKS = CASES[:2]


@dataclass
class Budget:
    """What one task or one chat takes. Processor time in seconds, by thread and by part; `spread` over the rounds."""

    case: Case
    cpu: dict[str, float] = field(default_factory=dict)
    spread: tuple[float, float] = (0.0, 0.0)
    disk_bytes: float = 0.0
    """Given to the kernel for the disk, checkpoints included; without the instruments."""
    statements: Sums = field(default_factory=lambda: Sums(float))
    texts: Sums = field(default_factory=lambda: Sums(float))
    commits: float = 0.0
    wal_bytes: Sums = field(default_factory=lambda: Sums(float))
    """By part, and by `|` and the name of the table or index."""
    calls: dict[str, float] = field(default_factory=dict)
    """Of the C library, by name; empty without a compiler."""
    shares: dict[str, float] = field(default_factory=dict)
    """Of the processor time, by part."""

    @property
    def cpu_total(self) -> float:
        return sum(self.cpu.values())


def measure(
    scale: Scale, folder: Path, cases: tuple[Case, ...] = CASES, settings: Mapping[str, str] | None = None
) -> list[Budget]:
    """Measure on SQLite, or on the database that the settings name."""
    budgets = [Budget(case) for case in cases]
    with gateways.upstream() as provider, ExitStack() as stack:
        rounds = scale.pick(scale.rounds, 1)
        made = shim.build(folder)
        if made is None:
            say("budget: no C compiler, so allocations, fsyncs and wake-ups are not counted")
        with probed(folder, "count", provider.port, settings, made) as one:
            for budget in budgets:
                _count(one, budget, scale.pick(budget.case.full, budget.case.quick), on_sqlite=not settings)
        with probed(folder, "sample", provider.port, settings) as one:
            for budget in budgets:
                _sample(one, budget, scale.pick(budget.case.full * rounds, budget.case.quick))
        plain = stack.enter_context(probed(folder, "plain", provider.port, settings))
        taken: list[list[dict[str, float]]] = [[] for _ in budgets]
        for budget in budgets:  # warm
            budget.case.send(plain, scale.pick(500, 20))
        plain.settle()
        idle = _idle(plain)
        for n in range(rounds):
            for budget, found in zip(budgets, taken, strict=True):
                found.append(_plain(plain, budget, scale.pick(budget.case.full, budget.case.quick), idle))
            say(f"budget: round {n + 1} of {rounds}")
        for budget, found in zip(budgets, taken, strict=True):
            budget.cpu = {name: median(one[name] for one in found) for name in ("loop", "others")}
            totals = [one["loop"] + one["others"] for one in found]
            budget.spread = (min(totals), max(totals))
            budget.disk_bytes = median(one["bytes"] for one in found)
    return budgets


def _idle(plain: Probed) -> dict[str, float]:
    """Processor seconds by thread that a service without work takes in a second."""
    before = plain.cpu()
    time.sleep(IDLE_SECONDS)
    return {name: (spent - before[name]) / IDLE_SECONDS for name, spent in plain.cpu().items()}


def _plain(plain: Probed, budget: Budget, count: int, idle: Mapping[str, float]) -> dict[str, float]:
    cpu, written, began = plain.cpu(), plain.written(), time.monotonic()
    budget.case.send(plain, count)
    plain.settle()
    seconds = time.monotonic() - began
    spent = {name: (now - cpu[name] - idle[name] * seconds) / count for name, now in plain.cpu().items()}
    return {**spent, "bytes": (plain.written() - written) / count}


def _count(one: Probed, budget: Budget, count: int, *, on_sqlite: bool) -> None:
    budget.case.send(one, 20)  # what is loaded or prepared once is not counted
    before, calls = one.totals(), one.shim.read() if one.shim else {}
    start = wal.size(one.database) if on_sqlite else 0
    budget.case.send(one, count)
    one.settle()
    calls = {name: (number - calls[name]) / count for name, number in (one.shim.read() if one.shim else {}).items()}
    for key, number in _since(before, one.totals()).items():
        part, _, text = key.partition("|")
        budget.statements[part] += number / count
        budget.texts[text] += number / count
    budget.calls = calls
    budget.commits = budget.texts["commit"]
    if on_sqlite:
        frames, length, commits = wal.written(one.database, start)
        budget.commits = commits / count  # in the file; reads end with a rollback
        for name, number in frames.items():
            part = TRANSACTIONS if name in ("free pages", "sqlite_schema") else of_table(name)
            budget.wal_bytes[part] += number * length / count
            budget.wal_bytes[f"|{name}"] += number * length / count


def _sample(one: Probed, budget: Budget, count: int) -> None:
    budget.case.send(one, 50)
    one.settle()
    before = one.totals()
    budget.case.send(one, count)
    one.settle()
    spent = _since(before, one.totals())
    whole = sum(spent.values())
    for key, seconds in spent.items():
        part = key.partition("|")[2]
        budget.shares[part] = budget.shares.get(part, 0.0) + seconds / whole
        budget.shares[key] = seconds / whole


def _since(before: Totals, after: Totals) -> Totals:
    return {key: number - before.get(key, 0) for key, number in after.items()}
