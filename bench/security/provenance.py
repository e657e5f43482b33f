"""What the provable run log costs: numbers per second, verification, one proof."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median

from bench.figures import Figure, at_least, at_most, percentile, spread
from bench.sizes import Scale, say
from stentor.core import ids, migrations
from stentor.core.clock import SystemClock
from stentor.core.db import Database
from stentor.core.db.locks.leader import SEQUENCER_LOCK_ID, LeaderElection
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.fanout.live import Hub
from stentor.core.runlog import EventDraft, RunLog, leaf_hash
from stentor.domains.provenance.audit.verification import verify_run_log
from stentor.domains.provenance.sequencer import Sequencer
from stentor.domains.provenance.service import ProvenanceService
from stentor.domains.provenance.signing.checkpoints import CheckpointPublisher
from stentor.domains.provenance.signing.signed_note import NoteVerifier, generate_signer

TITLE = "the provable run log"
CHAIN, GROUP = 6, 200
ROUTING = {"routing": {"agent_name": "summarizer", "candidates": [{"name": "a", "blended": 0.6}] * 5, "alpha": 0.3}}


def run(scale: Scale) -> list[Figure]:
    with scale.scratch() as folder:
        return asyncio.run(_run(scale, folder / "stentor.db"))


async def _run(scale: Scale, path: Path) -> list[Figure]:
    driver, clock = SqliteDriver(path), SystemClock()
    migrations.upgrade(driver)
    db, signer = Database(driver), generate_signer("bench")
    checkpoints = CheckpointPublisher(db, clock, lambda: signer)
    sequencer = Sequencer(db, clock, LeaderElection(driver, SEQUENCER_LOCK_ID, "numbers"), checkpoints, 1, 60)
    rounds, count = scale.pick(scale.rounds, 2), scale.pick(120_000, 6_000)
    numbered: list[float] = []
    events: list[str] = []
    for n in range(rounds):
        events += await write(db, count)
        started = time.perf_counter()
        await sequencer.drain()
        numbered.append(count / (time.perf_counter() - started))
        await checkpoints.publish()
        say(f"provenance: round {n + 1}, {numbered[-1]:,.0f} numbers/s")
    proofs = await _proofs(ProvenanceService(db, sequencer, checkpoints), events, scale.pick(500, 50))
    db.close()
    verified = [_verified(driver, len(events), [signer.verifier]) for _ in range(rounds)]
    hashed = _rate(lambda: leaf_hash(ROW), scale.pick(200_000, 20_000))
    return _figures(numbered, verified, proofs, hashed, len(events))


ROW = (
    ids.new_id(),
    "default",
    ids.new_id(),
    ids.new_id(),
    ids.new_id(),
    1_790_000_000_000_000,
    "routing_decision",
    "routing",
    "Routed to summarizer among 5.",
    1,
    '{"routing":' + '{"name":"a","blended":0.6},' * 10 + "}",
)


async def write(db: Database, count: int) -> list[str]:
    """Chains of six events as tasks have them, many in a commit."""
    runlog, found = RunLog(Hub()), list[str]()
    while count:
        chains = [_chain() for _ in range(min(GROUP, count // CHAIN))]
        await asyncio.gather(
            *(db.write(lambda tx, c=c: runlog.append(tx, "default", c, task_id=c[0].event_id)) for c in chains)
        )
        found += [draft.event_id for chain in chains for draft in chain]
        count -= len(chains) * CHAIN
    return found


def _chain() -> list[EventDraft]:
    kinds = ("prompt_received", "routing_decision", "task_queued", "task_started", "task_completed", "learning_updated")
    return [EventDraft(kind, "bench", "Routed to summarizer among 5.", ROUTING, "an agent", 3) for kind in kinds]


async def _proofs(provenance: ProvenanceService, events: list[str], count: int) -> list[float]:
    """Milliseconds of each."""
    found = []
    for event_id in Random(3).sample(events, count):
        started = time.perf_counter()
        await provenance.prove_inclusion("default", event_id, None, lambda *_: True)
        found.append(1000 * (time.perf_counter() - started))
    return found


def _verified(driver: SqliteDriver, count: int, verifiers: list[NoteVerifier]) -> float:
    started = time.perf_counter()
    report = verify_run_log(driver, verifiers)
    assert report.is_intact, report.findings
    assert report.size == count
    return count / (time.perf_counter() - started)


def _rate(call: Callable[[], object], count: int) -> float:
    """Microseconds of one call."""
    started = time.perf_counter()
    for _ in range(count):
        call()
    return 1e6 * (time.perf_counter() - started) / count


def _figures(
    numbered: list[float], verified: list[float], proofs: list[float], hashed: float, events: int
) -> list[Figure]:
    how = "`Sequencer.drain` over events that wait, nothing else running; leaves, tiles and marks in durable commits"
    whole = f"`verify` of {events:,} events, one process: events, leaves, tiles, signatures, chains of parents"
    return [
        Figure("events numbered", median(numbered), "/s", how, at_least(12_000), spread(numbered)),
        Figure("events verified", median(verified), "/s", whole, at_least(50_000), spread(verified)),
        Figure("inclusion proof p50", median(proofs), "ms", f"of any of {events:,} events, read from SQLite"),
        Figure("inclusion proof p99", percentile(proofs, 0.99), "ms", "the same", at_most(20)),
        Figure(
            "one hash when an event is written", hashed, "µs", "canonical bytes and SHA-256, in the writer's thread"
        ),
    ]
