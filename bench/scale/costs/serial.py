"""What happens one after the other: a commit, and the numbers that the sequencer gives."""

from __future__ import annotations

import asyncio
import time

from bench.figures import percentile
from bench.scale.costs.kept import Cost, Costs
from bench.scale.costs.server import Server
from bench.security.provenance import write
from bench.sizes import Scale
from stentor.core.clock import SystemClock
from stentor.core.db import Database
from stentor.core.db.driver import Locks
from stentor.core.db.locks.leader import SEQUENCER_LOCK_ID, LeaderElection
from stentor.core.db.locks.locks import MESSAGES_LOCK
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.fanout.live import Hub
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.messaging import store as messages
from stentor.domains.provenance.sequencer import Sequencer
from stentor.domains.provenance.signing.checkpoints import CheckpointPublisher
from stentor.domains.provenance.signing.signed_note import generate_signer


def measured(server: Server, scale: Scale) -> Costs:
    return asyncio.run(_measured(server, scale))


async def _measured(server: Server, scale: Scale) -> Costs:
    db = Database(PostgresDriver(server.url))
    count = scale.pick(300, 30)
    shared, everything = await _committed(db, (), count), await _committed(db, None, count)
    looked = await _looked(db, count)
    numbered = await _numbered(server, db, scale.pick(12_000, 1_200))
    db.close()
    how = f"10th percentile of {count} transactions of one event, one after the other: the machine was busy"
    return {
        "commit_seconds": Cost(shared, "s", f"{how}; the lock on everything shared"),
        "exclusive_seconds": Cost(everything, "s", f"{how}; the lock on everything exclusive"),
        "messages_seconds": Cost(
            looked, "s", f"10th percentile of {count} looks for a message with their lock, none there"
        ),
        **numbered,
    }


async def _looked(db: Database, count: int) -> float:
    waits = []
    for _ in range(count):
        started = time.perf_counter()
        await db.write(lambda tx: messages.claim_next(tx, 1, ""), (MESSAGES_LOCK,))
        waits.append(time.perf_counter() - started)
    return percentile(waits, 0.1)


async def _committed(db: Database, locks: Locks, count: int) -> float:
    runlog, waits = RunLog(Hub()), []
    for _ in range(count):
        draft = EventDraft("task_queued", "bench", "Queued.", {"priority": 2})
        started = time.perf_counter()
        await db.write(lambda tx, d=draft: runlog.append(tx, "default", [d]), locks)
        waits.append(time.perf_counter() - started)
    return percentile(waits, 0.1)


async def _numbered(server: Server, db: Database, count: int) -> Costs:
    signer, clock = generate_signer("bench"), SystemClock()
    leader = LeaderElection(db.driver, SEQUENCER_LOCK_ID, "numbers")
    sequencer = Sequencer(db, clock, leader, CheckpointPublisher(db, clock, lambda: signer), 1, 60)
    await sequencer.drain()
    await write(db, count)
    own, used, started = time.process_time(), server.cpu(), time.perf_counter()
    await sequencer.drain()
    waited = time.perf_counter() - started
    own, used = time.process_time() - own, server.cpu() - used
    how = f"the sequencer over {count:,} events that wait, in batches of 1,024"
    return {
        "sequencer_event_seconds": Cost(waited / count, "s", f"{how}: time per event, on a busy machine"),
        "sequencer_event_cpu": Cost((own + used) / count, "s", f"{how}: CPU of the process and of the server"),
    }
