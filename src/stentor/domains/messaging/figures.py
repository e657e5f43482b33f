"""What metrics tell of the queue of messages."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from stentor.core.clock import SECOND
from stentor.core.db import Sql, Tx
from stentor.core.metrics import gauge_family

_QUEUED = Sql("select count(*), min(due_at) from atp_messages where status = 'queued'")
_EXECUTING = Sql("select count(*) from atp_messages where status = 'executing'")


def metrics(tx: Tx) -> Iterable[Metric]:
    depth, due = tx.rows(_QUEUED)[0]
    waits = 0.0 if due is None else max(0, tx.now - int(due)) / SECOND
    executing = int(tx.rows(_EXECUTING)[0][0])
    yield gauge_family("stentor_message_queue_depth", "ATP messages that wait to be carried out.", int(depth))
    yield gauge_family("stentor_message_oldest_seconds", "How long the one that is due longest has been due.", waits)
    yield gauge_family("stentor_messages_executing", "ATP messages under way, or waiting for their task.", executing)
