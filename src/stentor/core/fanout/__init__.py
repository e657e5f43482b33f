"""What the processes of one installation tell each other at once: hints, and pieces of answers.

Nothing rests on a message: whatever it tells can be found in the rows, a moment later. So `send` never waits and never
fails, messages that wait together share a payload, and those that would say the same are sent once.
"""

from stentor.core.fanout.fanout import Fanout, Transport
from stentor.core.fanout.messages import Changed, Fresh, Message, Queued, Reconnected, Seen, Stopped, Tokens, Watched

__all__ = [
    "Changed",
    "Fanout",
    "Fresh",
    "Message",
    "Queued",
    "Reconnected",
    "Seen",
    "Stopped",
    "Tokens",
    "Transport",
    "Watched",
]
