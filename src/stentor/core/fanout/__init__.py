"""What the processes of one installation tell each other at once: hints, and pieces of answers.

Nothing rests on a message: whatever it tells can be found in the rows, a moment later. So `send` never waits and never
fails, messages that wait together share a payload, and those that would say the same are sent once.
"""

from stentor.core.fanout.fanout import (
    CacheInvalidated,
    Fanout,
    FanoutMessage,
    FanoutTransport,
    Reconnected,
    TaskChanged,
    TaskQueued,
    TaskStopped,
    TaskWatched,
    TokenBatch,
    WorkerSeen,
)

__all__ = [
    "CacheInvalidated",
    "Fanout",
    "FanoutMessage",
    "FanoutTransport",
    "Reconnected",
    "TaskChanged",
    "TaskQueued",
    "TaskStopped",
    "TaskWatched",
    "TokenBatch",
    "WorkerSeen",
]
