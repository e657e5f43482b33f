"""What metrics tell of the memory: its index, how far it is behind, and writes that are not carried out yet."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx
from stentor.core.db.leader import LeaderElection
from stentor.core.metrics import gauge_family, histogram_family
from stentor.domains.memory.index.index import Index
from stentor.domains.memory.indexer import Indexer
from stentor.domains.memory.meanings import Meanings

_OPEN = Sql("select count(*), min(created_at) from memory_intents")


def writes(tx: Tx) -> Iterable[Metric]:
    """From the service's database."""
    number, since = tx.rows(_OPEN)[0]
    age = 0.0 if since is None else max(0, tx.now - int(since)) / SECOND
    yield gauge_family(
        "stentor_memory_writes_open", "Writes that are recorded but not known to be in the vault yet.", int(number)
    )
    yield gauge_family("stentor_memory_write_oldest_seconds", "Age of the oldest of them.", age)


async def index(found: Index, indexer: Indexer, meanings: Meanings, leader: LeaderElection) -> list[Metric]:
    """From the index and the parts that keep it."""
    totals = await found.totals()
    waiting = meanings.wanted(totals.waiting)
    text = "Time from a change in the vault to its being found"
    return [
        histogram_family("stentor_memory_sync_lag_seconds", f"{text} by words.", indexer.lag.all),
        histogram_family("stentor_memory_vector_lag_seconds", f"{text} by meaning.", meanings.lag.all),
        gauge_family("stentor_memory_vectors_waiting", "Documents that wait for their vectors.", waiting),
        gauge_family("stentor_memory_leads", "Whether this process follows the vault.", int(leader.was_leader)),
        gauge_family("stentor_memory_index_documents", "Documents in the index.", totals.documents),
        gauge_family("stentor_memory_index_text_bytes", "Size of these documents.", totals.size),
    ]
