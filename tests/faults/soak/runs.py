"""The two runs: an installation of six processes on PostgreSQL, and one process with its workers on SQLite."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.checker import ENDS, query, read_only
from tests.faults.flushes import failing_flushes
from tests.faults.history import History, judge
from tests.faults.proxy import Proxy
from tests.faults.server import server
from tests.faults.soak import disk
from tests.faults.soak.clients import Clients
from tests.faults.soak.members import Member, Supervisor, service, worker
from tests.faults.soak.nemesis import Clock, Nemesis

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
SETTLE_SECONDS, NUMBER_SECONDS = 240, 30
PATH = os.environ["PATH"]
Say = Callable[[str], None]


@dataclass
class Plan:
    seconds: float
    tasks: int
    seed: int


@dataclass
class Result:
    """What one run did and what was found."""

    database: str
    plan: Plan
    history: History = field(default_factory=History)
    faults: Counter[str] = field(default_factory=Counter)
    left_out: list[str] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    numbers: dict[str, int] = field(default_factory=dict)
    exits: dict[str, list[int]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    found: list[str] = field(default_factory=list)
    trails: list[str] = field(default_factory=list)
    """The events of the tasks that violations name."""
    settled: float = 0.0


@contextmanager
def _folder() -> Iterator[Path]:
    """One that other users may look into: PostgreSQL runs as its own."""
    folder = Path(tempfile.mkdtemp(prefix="stentor-soak-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _clock(folder: Path, result: Result) -> Clock | None:
    if FAKETIME.exists():
        return Clock(folder / "clock", str(FAKETIME))
    result.left_out.append("jumps of the clock (Debian package libfaketime)")
    return None


def on_postgresql(plan: Plan, say: Say) -> Result:
    result = Result("PostgreSQL", plan)
    nemesis = Nemesis(random.Random(plan.seed), say)
    with ExitStack() as stack:
        folder = stack.enter_context(_folder())
        small = stack.enter_context(disk.small_disk(folder / "disk", disk.MEGABYTES["PostgreSQL"]))
        clock = _clock(folder, result)
        its = stack.enter_context(server(clock.environ() if clock else None, folder / "disk"))
        proxy = stack.enter_context(Proxy(its.url))
        roles = {"gateway1": "gateway", "gateway2": "gateway", "worker1": "worker", "worker2": "worker"}
        own = {name: Clock(folder / f"clock-{name}", clock.library) for name in ("gateway2", "worker1") if clock}
        environs = {name: own[name].environ() if name in own else {} for name in roles}
        inside = [
            service(name, folder, PATH, SERVICE_ROLES=role, SERVICE_DATABASE_URL=proxy.url, **environs[name])
            for name, role in roles.items()
        ]
        outside = [worker(f"external{at + 1}", folder, PATH, inside[at].address) for at in range(2)]
        nemesis.of_members("a gateway", inside[:2])
        nemesis.of_members("a worker process", inside[2:])
        nemesis.of_members("an external worker", outside)
        nemesis.of_server(its)
        nemesis.of_network(proxy)
        if clock:
            nemesis.of_clock("PostgreSQL's clock", clock)
        for name, its_own in own.items():
            nemesis.of_clock(f"the clock of {name}", its_own)
        _add_disk(result, nemesis, folder / "disk" if small else None, its.pids, its.restart)
        _run(result, nemesis, inside, outside, its.url)
        _look_back(result, folder, its.url)
    return result


def on_sqlite(plan: Plan, say: Say) -> Result:
    result = Result("SQLite", plan)
    nemesis = Nemesis(random.Random(plan.seed), say)
    with ExitStack() as stack:
        folder = stack.enter_context(_folder())
        small = stack.enter_context(disk.small_disk(folder / "disk", disk.MEGABYTES["SQLite"]))
        clock = _clock(folder, result)
        inside = [service("disk/data", folder, PATH, **(clock.environ() if clock else {}))]
        inside[0].log = folder / "service.log"
        outside = [worker(f"external{at}", folder, PATH, inside[0].address) for at in (1, 2)]
        nemesis.of_members("the service", inside)
        nemesis.of_members("an external worker", outside)
        if clock:
            nemesis.of_clock("the service's clock", clock)
        _add_disk(result, nemesis, folder / "disk" if small else None, inside[0].pids)
        database = folder / "disk" / "data" / "stentor.db"
        _run(result, nemesis, inside, outside, database)
        _look_back(result, folder, database)
    return result


def _add_disk(
    result: Result,
    nemesis: Nemesis,
    small: Path | None,
    pids: Callable[[], list[int]],
    then: Callable[[], object] = lambda: None,
) -> None:
    """`pids` are the processes that write; `then` starts them again if that ended them."""
    if small is not None:

        def fills_up() -> None:
            disk.full(small, nemesis.chance.uniform(1, 5))
            then()

        nemesis.add("full disk", fills_up)
    else:
        result.left_out.append("a full disk (needs root)")
    if strace := shutil.which("strace"):

        def flushes_fail() -> None:
            with failing_flushes(strace, pids()) as reason:
                time.sleep(nemesis.chance.uniform(1, 4))
            if reason:
                nemesis.done["flushes that fail"] -= 1
            then()

        nemesis.add("flushes that fail", flushes_fail)
    else:
        result.left_out.append("errors of fsync (Debian package strace)")


def _run(result: Result, nemesis: Nemesis, inside: list[Member], outside: list[Member], database: Path | str) -> None:
    plan, gateways = result.plan, [member.address for member in inside[:2]]
    clients = Clients(gateways, result.history, plan.tasks, plan.seconds, plan.seed)
    with Supervisor([*inside, *outside]):
        for member in [*inside, *outside]:
            member.start()
            if not _until(member.ready, 60):
                raise AssertionError(f"{member.name} is not ready: {member.log.read_text()[-2000:]}")
        if not _until(lambda: len(_told(outside)) == len(outside), 30):
            raise AssertionError("the workers did not come")
        clients.start()
        nemesis.run(plan.seconds)
        nemesis.said("no more faults")
        ended = time.monotonic()
        clients.join()
        settled = _until(lambda: not _open(database), SETTLE_SECONDS)
        result.settled = time.monotonic() - ended
        if not settled:
            result.found.append(f"{_open(database)} tasks did not end within {SETTLE_SECONDS} s of the last fault")
        if not _until(lambda: not _unnumbered(database), NUMBER_SECONDS):
            result.found.append(f"{_unnumbered(database)} events had no number {NUMBER_SECONDS} s after the last end")
    result.faults = nemesis.done
    result.exits = {member.name: member.exits for member in [*inside, *outside] if member.exits}


def _told(outside: list[Member]) -> list[Path]:
    """The files of the workers that have registered."""
    files = [member.log.with_suffix(".jsonl") for member in outside]
    return [file for file in files if file.exists()]


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True


def _open(database: Path | str) -> int:
    """Tasks that have not ended."""
    ends = ", ".join(f"'{end}'" for end in ENDS.values())
    with closing(read_only(database)) as connection:
        return int(query(connection, f"select count(*) as n from tasks where status not in ({ends})")[0]["n"])


UNNUMBERED = "select (select count(*) from events) - (select count(*) from provenance_leaves) as n"


def _unnumbered(database: Path | str) -> int:
    """Events that are not in the proof yet."""
    with closing(read_only(database)) as connection:
        return int(query(connection, UNNUMBERED)[0]["n"])


NUMBERS = {
    "events in the run log": "select count(*) as n from events",
    "events with a number in the proof": "select count(*) as n from provenance_leaves",
    "attempts": "select sum(epoch) as n from tasks",
    "tasks with more than one attempt": "select count(*) as n from tasks where epoch > 1",
    "most attempts of a task": "select max(epoch) as n from tasks",
    "lessons": "select count(*) as n from hebbian_history",
    "samples in the weights": "select sum(samples) as n from hebbian_weights",
    "tasks that may be learned from": "select count(*) as n from tasks where learning_eligible = 1",
    "lessons that still wait": "select count(*) as n from tasks where learning_pending = 1",
    "changes of trust by a task": "select count(*) as n from trust_changes where cause is not null",
}


def _look_back(result: Result, folder: Path, database: Path | str) -> None:
    for file in folder.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            told = json.loads(line)
            result.history.was_finished(told["task_id"], told["epoch"])
    with closing(read_only(database)) as connection:
        result.numbers = {name: int(query(connection, sql)[0]["n"] or 0) for name, sql in NUMBERS.items()}
        states = query(connection, "select status, count(*) as n from tasks group by status")
        result.states = Counter({row["status"]: row["n"] for row in states})
        result.found += judge(database, result.history)
        result.trails = list(_trails(connection, result.found))
    for log in sorted(folder.glob("*.log")):
        result.errors.update(f"{log.stem.rstrip('0123456789')}: {line}" for line in _raised(log.read_text()))


def _trails(connection: Any, found: list[str]) -> Iterator[str]:
    for task_id in sorted(set(re.findall(r"task-\d+", " ".join(found))))[:10]:
        sql = f"select * from events where task_id = '{task_id}' order by event_id"
        for event in query(connection, sql):
            yield f"{task_id} {event['happened_at']} {event['event_type']} {event['metadata']}"[:200]


def _raised(text: str) -> Iterator[str]:
    """The last line of each traceback."""
    inside, indent = False, 0
    for line in text.splitlines():
        if line.lstrip().startswith("Traceback"):
            inside, indent = True, line.index("T")  # the log indents it
        elif inside and line and not line[indent:].startswith(" "):
            inside = False
            yield re.sub(r"[0-9a-f-]{36}|task-\d+", "...", line.strip())[:200]
