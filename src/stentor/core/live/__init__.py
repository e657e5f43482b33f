"""Live streams: what watchers of a task see at once, in this process and in others."""

from stentor.core.live.hub import ENDINGS, MAX_TOKENS, Hub
from stentor.core.live.messages import MAX_WAITING, Look, Token, Watcher

__all__ = ["ENDINGS", "MAX_TOKENS", "MAX_WAITING", "Hub", "Look", "Token", "Watcher"]
