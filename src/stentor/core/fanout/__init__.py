"""Fan-out: messages between the processes of one installation, such as "task queued", and streamed tokens.

Messages are hints: a process that misses one finds the change in the database a moment later, by polling. So `send`
never waits and never fails, queued messages share payloads, and equal ones are sent once. A message is for all
processes, or for the one whose id it names. The transports are `postgres` (NOTIFY) and `nats`.
"""

from stentor.core.fanout.fanout import (
    MAX_BATCH_CHARACTERS,
    Address,
    CacheInvalidated,
    Fanout,
    FanoutMessage,
    FanoutTransport,
    ProcessWorks,
    Reconnected,
    TaskChanged,
    TaskQueued,
    TaskStopped,
    TaskWatched,
    TokenBatch,
    WorkerSeen,
)

__all__ = [
    "MAX_BATCH_CHARACTERS",
    "Address",
    "CacheInvalidated",
    "Fanout",
    "FanoutMessage",
    "FanoutTransport",
    "ProcessWorks",
    "Reconnected",
    "TaskChanged",
    "TaskQueued",
    "TaskStopped",
    "TaskWatched",
    "TokenBatch",
    "WorkerSeen",
]
