"""What every process keeps in memory and reads again: agents, weights and trust."""

from __future__ import annotations

import asyncio
import time
import tracemalloc

from bench.scale.costs.kept import Cost, Costs
from bench.scale.costs.server import Server
from bench.sizes import Scale
from stentor.core.clock import SystemClock
from stentor.core.db import Database
from stentor.core.db.polling import apply_polls
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.fanout.live import Hub
from stentor.core.runlog import RunLog
from stentor.domains.learning import store as weights
from stentor.domains.learning.view import LearningView
from stentor.domains.registry.service import AgentRegistry
from stentor.domains.trust import store as trusts
from stentor.domains.trust.service import TrustView

ROUNDS = 5
_ID = "'00000000-0000-7000-8000-' || lpad(n::text, 12, '0')"
_AGENTS = f"""insert into agents (agent_id, tenant, name, capabilities, alignment_score, accuracy_score,
    efficiency_score, trust_tier, status, runtime, sandbox_whitelist, violation_count, created_at, updated_at)
    select {_ID}, 'default', 'agent ' || n, '["skill-' || n % 500 || '"]', 0.5, 0.5, 0.5, 'auto', 'active',
        '{{{{"kind":"worker"}}}}', '{{{{}}}}', 0, n, n from generate_series({{}}, {{}}) as n"""
_WEIGHTS = f"""insert into hebbian_weights (agent_id, task_type, weight, mean_ms, samples, recent, updated_at)
    select {_ID}, 'review', 1.1, 12.5, 9, 'SSF', n from generate_series({{}}, {{}}) as n"""
_TRUST = f"""insert into trust_scores (tenant, entity_id, entity_type, score, updated_at)
    select 'default', {_ID}, 'agent', 0.6, n from generate_series({{}}, {{}}) as n"""


def measured(server: Server, scale: Scale) -> Costs:
    return asyncio.run(_measured(server, *scale.pick((10_000, 50_000), (500, 1_500))))


async def _measured(server: Server, few: int, many: int) -> Costs:
    small, _ = await _memory(server, 1, few)
    large, found = await _memory(server, few + 1, many)
    bytes_of_one = (large - small) / (many - few)
    how = f"tracemalloc of registry, weights and trust as a refresh builds them, {many:,} agents less {few:,}"
    return {"agent_bytes": Cost(bytes_of_one, "B", how), **found}


async def _memory(server: Server, low: int, high: int) -> tuple[float, Costs]:
    """Bytes of all agents up to `high`, and what it costs to read them."""
    server.run(*(text.format(low, high) for text in (_AGENTS, _WEIGHTS, _TRUST)), "vacuum analyze")
    costs = await _read(server, high)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = await _refreshed(server)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    del kept
    return grown, costs


async def _refreshed(server: Server) -> tuple[object, ...]:
    """As at the start of a process."""
    db = Database(PostgresDriver(server.url))
    registry, learning, trust = AgentRegistry(db, SystemClock(), RunLog(Hub())), LearningView(), TrustView()
    await apply_polls(db.read, [registry.poll_query(0)])
    for tenant, weight in await db.read(lambda tx: weights.changed_since(tx, 0)):
        learning.put(tenant, weight)
    for tenant, entity in await db.read(lambda tx: trusts.changed_since(tx, 0)):
        trust.put(tenant, entity)
    db.close()
    return registry, learning, trust


async def _read(server: Server, count: int) -> Costs:
    own, used = time.process_time(), server.cpu()
    await _refreshed(server)
    own, used = time.process_time() - own, server.cpu() - used
    own_pair, used_pair = await _pair(server)
    start = f"CPU seconds to read {count:,} agents with weight and trust into memory, per agent"
    row = f"CPU seconds of a refresh that finds {count:,} weights and {count:,} trust scores changed, per pair"
    return {
        "agent_load_process_cpu": Cost(own / count, "s", start),
        "agent_load_pg_cpu": Cost(used / count, "s", f"{start}; the server"),
        "refresh_row_process_cpu": Cost(own_pair / count, "s", row),
        "refresh_row_pg_cpu": Cost(used_pair / count, "s", f"{row}; the server"),
    }


async def _pair(server: Server) -> tuple[float, float]:
    """CPU seconds of this process and of the server for a refresh that finds every weight and every score."""
    db = Database(PostgresDriver(server.url))
    own, used = time.process_time(), server.cpu()
    for _ in range(ROUNDS):
        await db.read(lambda tx: weights.changed_since(tx, 0))
        await db.read(lambda tx: trusts.changed_since(tx, 0))
    found = (time.process_time() - own) / ROUNDS, (server.cpu() - used) / ROUNDS
    db.close()
    return found
