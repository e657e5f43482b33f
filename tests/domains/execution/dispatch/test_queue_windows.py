"""The windows of long queues against queues that hold everything: the same tasks in the same order, each one once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.clock import SECOND
from stentor.core.db import NO_LOCKS, Database, Sql, Tx
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.errors import StoreUnavailable
from stentor.domains.execution.dispatch import agent_queues
from stentor.domains.execution.dispatch.agent_queues import AgentQueues
from stentor.domains.execution.dispatch.in_memory_dispatcher import InMemoryDispatcher
from stentor.domains.tasks.model import QueuedTask, TaskClaim
from stentor.domains.tasks.queues import lease_store
from stentor.domains.tasks.queues.queue_store import QUEUED_COLUMNS, queued_from_row
from tests.databases import Databases
from tests.patience import soon
from tests.requirements import requirement

AGENTS = ("ann", "bob")
WINDOW = 3
INSERT = Sql(
    """insert into tasks (tenant, task_id, status, type, priority, assigned_agent, runtime_kind, created_at, queued_at,
        timeout_seconds, epoch, attempt_epoch, provenance_id, head_id, submitted_by, submitted_status, estimated_start,
        estimated_completion, body_hash, required_capabilities, metadata, input)
    values ('default', :task_id, 'queued', 'echo', :priority, :agent, :kind, 0, :queued_at,
        300, 0, 0, '', :head, :submitter, 'queued', 0, 0, '', '[]', '{}', '""')"""
)
CLEAR = Sql("delete from tasks")
CLEAR_COUNTS = Sql("delete from task_counts")
COUNT = Sql(
    """insert into task_counts (tenant, hour, status, agent_id, n)
    select tenant, -1, status, assigned_agent, count(*) from tasks group by 1, 3, 4"""
)
STOP = Sql("update tasks set status = 'cancelled', completion_time = 1 where task_id = :task_id")
MOVE = Sql("update tasks set assigned_agent = :agent, head_id = :head where task_id = :task_id")
REQUEUE = Sql(
    """update tasks set status = 'queued', queued_at = :queued_at, head_id = :head, lease_until = null,
        deadline_at = null where task_id = :task_id"""
)
FINISH = Sql(
    """update tasks set status = 'completed', completion_time = 1, lease_until = null, deadline_at = null
    where task_id = :task_id"""
)
LIST = Sql(f"select {QUEUED_COLUMNS} from tasks where status = :status order by queued_at, task_id")


class UnreliableDatabase(Database):
    """Of the queues' reads the next `failures` fail; the others give what they found once `gate` is set."""

    failures, reading = 0, 0
    gate: asyncio.Event

    async def poll(self, fn: Callable[[Tx], Any]) -> Any:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("The queue cannot be read (injected).")
        self.reading += 1
        try:
            result = await self.read(fn)
            await self.gate.wait()
        finally:
            self.reading -= 1
        return result


class Executor:
    """Claims by the rows alone, without the checks that are not about queues, and runs a task in no time."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.started: list[str] = []
        self.held_claims: dict[tuple[str, str], TaskClaim] = {}

    def claim_all(self, tx: Tx, tasks: list[QueuedTask], lease: int) -> list[TaskClaim]:
        claims = lease_store.claim_all(tx, [(queued, queued.head_id) for queued in tasks], lease)
        return [claims[queued.tenant, queued.task_id] for queued in tasks if (queued.tenant, queued.task_id) in claims]

    async def claim_and_run(self, queued: QueuedTask, _done: Callable[[], None]) -> None:
        self.started.append(queued.task_id)
        if await self._db.write(partial(self.claim_all, tasks=[queued], lease=SECOND), NO_LOCKS):
            await self._db.write(lambda tx: tx.run(FINISH, task_id=queued.task_id))


class Queues:
    """A dispatcher, and beside it queues that hold everything, which are told the same."""

    def __init__(self, db: UnreliableDatabase, kind: str = "worker") -> None:
        self.db = db
        self.db.gate = asyncio.Event()
        self.db.gate.set()
        self.kind = kind
        self.time = 1_000
        self.refill: Callable[[], None] | None = None

    async def begin(self) -> None:
        await self.db.write(lambda tx: (tx.run(CLEAR), tx.run(CLEAR_COUNTS)))
        await self.start()

    async def start(self) -> None:
        self.db.gate.set()
        self.db.failures, self.refill = 0, None
        self.executor = Executor(self.db)
        self.dispatcher = InMemoryDispatcher(self.db, self.executor, 2)  # pyrefly: ignore[bad-argument-type]
        (await self.db.read(self.dispatcher.refill_query()))()
        self.model = AgentQueues(self.db, lambda agent_id: None, lambda ref: False)
        self.model.window = 1_000_000
        for queued in await self.list("queued"):
            self.model.add(queued)

    async def close(self) -> None:
        await self.dispatcher.close(0, asyncio.Event())

    async def list(self, status: str) -> list[QueuedTask]:
        rows = await self.db.read(lambda tx: tx.rows(LIST, status=status))
        return [queued_from_row(row) for row in rows]

    async def change(self, sql: Sql, after: Callable[[], None], **params: Any) -> None:
        def work(tx: Tx) -> None:
            tx.run(sql, **params)
            tx.after_commit(after)

        await self.db.write(work, NO_LOCKS)

    def insert(self, agent: str, priority: int, submitter: str, queued_at: int) -> tuple[QueuedTask, dict[str, Any]]:
        self.time += 1
        task_id, head = f"t{self.time}", head_of(self.time)
        queued = QueuedTask("default", task_id, priority, queued_at, agent, self.kind, 0, head, submitted_by=submitter)
        params = {"task_id": task_id, "priority": priority, "agent": agent, "kind": self.kind, "queued_at": queued_at}
        return queued, {**params, "head": head, "submitter": submitter}

    async def push(self, agent: str, priority: int, submitter: str, age: int = 0) -> None:
        queued, params = self.insert(agent, priority, submitter, self.time - age)
        await self.change(INSERT, lambda: self.enqueue(queued), **params)

    async def push_many(self, agent: str, priority: int, submitter: str) -> None:
        for _ in range(2 * WINDOW):
            await self.push(agent, priority, submitter)

    def enqueue(self, queued: QueuedTask) -> None:
        self.dispatcher.enqueue(queued)
        self.model.add(queued)

    async def stop(self, number: int) -> None:
        for queued in pick(await self.list("queued"), number):
            await self.change(STOP, lambda: self._stop(queued), task_id=queued.task_id)  # noqa: B023

    async def stop_newest(self) -> None:
        await self.stop(-1)

    def _stop(self, queued: QueuedTask) -> None:
        self.dispatcher.stop("default", queued.task_id, queued.epoch)
        self.model.remove(("default", queued.task_id))

    async def move(self, number: int) -> None:
        for old in pick(await self.list("queued"), number):
            self.time += 1
            agent = AGENTS[old.agent_id == AGENTS[0]]
            moved = QueuedTask(
                *(old.tenant, old.task_id, old.priority, old.queued_at, agent, old.runtime_kind, old.epoch),
                head_of(self.time),
                submitted_by=old.submitted_by,
            )
            after = partial(self._move, old, moved)
            await self.change(MOVE, after, agent=agent, head=moved.head_id, task_id=old.task_id)

    def _move(self, old: QueuedTask, moved: QueuedTask) -> None:
        self.dispatcher.reassign(old.agent_id, [moved])
        self.model.move(old.agent_id, [moved])

    async def requeue(self, number: int) -> None:
        for old in pick(await self.list("executing"), number):
            self.time += 1
            again = QueuedTask(
                *(old.tenant, old.task_id, old.priority, self.time, old.agent_id, old.runtime_kind, old.epoch),
                head_of(self.time),
                submitted_by=old.submitted_by,
            )
            params = {"queued_at": self.time, "head": again.head_id, "task_id": old.task_id}
            await self.change(REQUEUE, partial(self.enqueue, again), **params)

    async def claim(self, agent: str, limit: int) -> int:
        """Claim, and compare with the queues that hold everything; return how many tasks there were."""
        tries = self.db.failures + 1
        wanted = 0 if self.db.failures else min(limit if self.db.gate.is_set() else 1, self.model.depth(agent))
        claims: list[TaskClaim] = []
        while tries and not claims:
            tries -= 1
            limit = 1 if not self.db.gate.is_set() else limit
            if not await self.dispatcher.wait_for_task(agent, 0):
                self.db.gate.set()  # the next task must be read first
            claims = await self.dispatcher.claim(agent, limit, SECOND)
        assert len(claims) >= wanted
        expected = self.model.take(agent, len(claims) or 1)
        assert [claim.task_id for claim in claims] == [queued.task_id for queued in expected]
        return len(claims)

    async def look(self) -> None:
        """Refill, and compare what the dispatcher counts with the rows."""
        await self.db.write(lambda tx: (tx.run(CLEAR_COUNTS), tx.run(COUNT)))
        (await self.db.read(self.dispatcher.refill_query()))()
        counts = {agent: self.model.depth(agent) for agent in AGENTS if self.model.depth(agent)}
        assert self.dispatcher.queue_depths() == counts
        assert self.dispatcher.count_queued() == sum(counts.values())

    async def refill_slowly(self) -> None:
        """Read for a refill, or apply what was read some steps ago."""
        if self.refill is None:
            self.refill = await self.db.read(self.dispatcher.refill_query())
        else:
            self.refill()
            self.refill = None

    async def wait(self) -> None:
        """Let the reads end."""
        self.db.gate.set()
        for _ in range(2):
            await yield_often()
            await soon(lambda: not self.db.reading)

    async def drain(self) -> None:
        """Claim everything."""
        self.db.failures = 0
        self.db.gate.set()
        for agent in AGENTS:
            while await self.claim(agent, 2):
                pass
        assert await self.list("queued") == []


async def yield_often() -> None:
    """Let every task of the loop go on until it waits for something."""
    for _ in range(9):
        await asyncio.sleep(0)


def head_of(number: int) -> str:
    return str(UUID(int=number))


def pick(tasks: list[QueuedTask], number: int) -> list[QueuedTask]:
    return [tasks[number % len(tasks)]] if tasks else []


# Most tasks go to one lane, so that it is longer than its window; the others are for the order among lanes.
agents = st.sampled_from((*[AGENTS[0]] * 4, AGENTS[1]))
lanes = st.tuples(agents, st.sampled_from((1, 1, 1, 1, 0)), st.sampled_from(("kim", "kim", "kim", "lee", "may")))
numbers = st.integers(0, 40)
steps = st.one_of(
    st.builds(lambda lane: ("push", *lane), lanes),
    st.builds(lambda lane: ("push", *lane), lanes),
    st.builds(lambda lane, age: ("push", *lane, age), lanes, numbers),
    st.builds(lambda lane: ("push_many", *lane), lanes),
    st.tuples(st.just("claim"), agents, st.integers(1, 5)),
    st.tuples(st.just("claim"), agents, st.integers(1, 5)),
    st.tuples(st.sampled_from(("stop", "move", "requeue")), numbers),
    st.tuples(st.sampled_from(("stop_newest", "shut", "shut", "open", "refill_slowly", "look", "fail", "restart"))),
)


async def play(queues: Queues, step: tuple[Any, ...]) -> None:
    name, *args = step
    if name == "restart":
        await queues.close()
        await queues.start()
    elif name == "shut":
        queues.db.gate.clear()
    elif name == "open":
        queues.db.gate.set()
    elif name == "fail":
        queues.db.failures = 2
    else:
        await getattr(queues, name)(*args)


@pytest.fixture(scope="module")
def sqlite_file(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return databases.sqlite(tmp_path_factory.mktemp("windows") / "stentor.db")


@pytest.fixture(scope="module", autouse=True)
def _short_window() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_queues, "MAX_WINDOW", WINDOW)
        patch.setattr(agent_queues, "MIN_WINDOW", WINDOW)
        patch.setattr(agent_queues, "RETRY_SECONDS", 0)
        yield


def run(path: Path, script: Callable[[Queues], Any], kind: str = "worker") -> None:
    async def main() -> None:
        db = UnreliableDatabase(SqliteDriver(path, durable=False))
        queues = Queues(db, kind)
        try:
            await queues.begin()
            await script(queues)
        finally:
            await queues.close()
            db.close()

    asyncio.run(main())


@requirement("tasks.long-queues")
@given(st.lists(steps, min_size=20, max_size=120))
def test_a_window_gives_out_what_a_whole_queue_would(sqlite_file: Path, script: list[tuple[Any, ...]]) -> None:
    async def play_all(queues: Queues) -> None:
        for step in script:
            await play(queues, step)
        await queues.drain()

    run(sqlite_file, play_all)


LANE = ("ann", 1, "kim")
PUSH, OLDER, CLAIM, STOP_NEWEST, SHUT = (
    ("push", *LANE),
    ("push", *LANE, 30),
    ("claim", "ann", 1),
    ("stop_newest",),
    ("shut",),
)
# The window holds one of four tasks; the claim takes it, and the gate keeps back what the read finds.
READING = [PUSH, PUSH, PUSH, PUSH, SHUT, CLAIM]
READING_NOTHING = [PUSH, PUSH, PUSH, PUSH, STOP_NEWEST, STOP_NEWEST, STOP_NEWEST, SHUT, CLAIM]


@requirement("tasks.long-queues")
@pytest.mark.parametrize("look", [False, True])
@pytest.mark.parametrize(
    "script",
    [
        [*READING, PUSH, PUSH],
        [*READING_NOTHING, PUSH, PUSH],
        [*READING_NOTHING, PUSH, STOP_NEWEST],
        [*READING_NOTHING, ("push_many", *LANE), STOP_NEWEST],
        [*READING, OLDER, OLDER, OLDER, OLDER],
        [*READING, ("stop", 0)],
        [*READING, ("move", 0)],
        [*READING, ("move", 0), ("move", 0)],
        [*READING_NOTHING, ("requeue", 0)],
        [*READING, ("refill_slowly",), CLAIM, ("refill_slowly",)],
        [*READING[:-2], ("fail",), CLAIM, PUSH],
        [*READING, ("restart",)],
    ],
)
def test_nothing_is_lost_or_given_twice_that_changes_during_a_read(
    sqlite_file: Path, script: list[tuple[Any, ...]], look: bool
) -> None:
    async def play_all(queues: Queues) -> None:
        for step in script:
            await play(queues, step)
        await queues.wait()
        if look:
            await queues.look()
        await queues.drain()

    run(sqlite_file, play_all)


@requirement("tasks.long-queues")
def test_a_claim_waits_for_the_read_of_its_next_task_and_not_beyond_the_end_of_the_service(sqlite_file: Path) -> None:
    async def script(queues: Queues) -> None:
        for step in READING:
            await play(queues, step)
        await queues.push("ann", 0, "kim")
        claims = [asyncio.create_task(queues.dispatcher.claim("ann", 2, SECOND)) for _ in range(2)]
        await yield_often()
        assert not any(claim.done() for claim in claims)
        claims[0].cancel()
        await asyncio.wait(claims[:1])
        # What the cancelled claim had taken before it had to wait is back.
        assert await queues.dispatcher.wait_for_task("ann", 0)
        await queues.close()
        assert await claims[1] == []
        assert len(await queues.dispatcher.claim("ann", 2, SECOND)) == 1

    run(sqlite_file, script)


@requirement("tasks.long-queues")
def test_a_read_that_fails_is_logged_and_tried_again(sqlite_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def script(queues: Queues) -> None:
        for step in READING[:-2]:
            await play(queues, step)
        queues.db.failures = 3
        assert await queues.claim("ann", 1) == 1
        assert await queues.dispatcher.wait_for_task("ann", 60)
        assert queues.db.failures == 0
        await queues.drain()

    with caplog.at_level("DEBUG", "stentor.domains.execution.dispatch.agent_queues"):
        run(sqlite_file, script)
    assert sum("reading a queue failed agent_id=ann" in line for line in caplog.messages) == 3


@requirement("tasks.long-queues")
def test_agents_inside_the_service_go_on_by_themselves_in_order(sqlite_file: Path) -> None:
    async def script(queues: Queues) -> None:
        offline = ["ann"]
        queues.dispatcher.offline_endpoints = lambda: offline
        for n in range(30):
            await queues.push("ann", n % 2, "kim")
        await queues.look()
        expected = [queued.task_id for queued in queues.model.take("ann", 30)]
        offline.clear()
        queues.db.failures = 2
        queues.dispatcher.resume_agents(["ann"])
        await soon(lambda: len(queues.executor.started) == 30)
        assert queues.executor.started == expected

    run(sqlite_file, script, "builtin")


@requirement("tasks.long-queues")
def test_a_queue_holds_no_more_than_its_window_whatever_comes(sqlite_file: Path) -> None:
    async def script(queues: Queues) -> None:
        held = AgentQueues(queues.db, lambda agent_id: None, lambda ref: False)
        for n in range(200):
            # Half of them older than all before, as those that move here from another agent.
            held.add(queues.insert("ann", 1, "kim", 1_000 + (n if n % 2 else -n))[0])
            assert held.get("ann").held <= WINDOW
        assert held.depth("ann") == 200

    run(sqlite_file, script)


@requirement("tasks.long-queues")
def test_many_lanes_have_shorter_windows(sqlite_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_queues, "MAX_WINDOW", 100)
    monkeypatch.setattr(agent_queues, "MAX_HELD", 60)

    async def script(queues: Queues) -> None:
        for submitter in "abcde":
            for _ in range(30):
                await queues.push("ann", 1, submitter)
        held = AgentQueues(queues.db, lambda agent_id: None, lambda ref: False)
        (await queues.db.read(held.refill_query()))()
        await soon(lambda: all(lane.attempt is None for lane in held.get("ann").lanes()))
        assert 5 <= held.get("ann").held <= 60
        await held.close()

    run(sqlite_file, script)


def test_a_newer_entry_replaces_the_older_one_and_an_older_task_comes_first(sqlite_file: Path) -> None:
    async def script(queues: Queues) -> None:
        held = AgentQueues(queues.db, lambda agent_id: None, lambda ref: False)
        first, second, older = [
            queues.insert("ann", 1, submitter, queued_at)[0]
            for submitter, queued_at in (("kim", 20), ("lee", 30), ("lee", 10))
        ]
        for queued in (first, second, second, msgspec.structs.replace(second, head_id=head_of(9)), older):
            held.add(queued)
        assert held.depths() == {"ann": 3}
        assert [queued.task_id for queued in held.take("ann", 9)] == [older.task_id, first.task_id, second.task_id]
        assert held.depths() == {}

    run(sqlite_file, script)


def test_a_task_that_comes_while_its_lane_is_read_counts_for_the_age_of_the_lane(sqlite_file: Path) -> None:
    async def script(queues: Queues) -> None:
        await queues.push("bob", 1, "kim")
        await queues.push("bob", 1, "may")
        missed, params = queues.insert("ann", 1, "kim", queues.time)
        queues.model.add(missed)
        await queues.change(INSERT, lambda: None, **params)
        queues.db.gate.clear()
        (await queues.db.read(queues.dispatcher.refill_query()))()
        # Older than the task that is being read, and younger than the one that moves there.
        await queues.push("ann", 1, "lee", 2)
        await queues.move(0)
        await queues.drain()

    run(sqlite_file, script)
