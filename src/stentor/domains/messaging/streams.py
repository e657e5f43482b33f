"""The answer to a message as a stream: what its task says, token by token, under the message's own header."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from stentor.domains.messaging.model import ENDS, Stored
from stentor.domains.messaging.service import Messaging
from stentor.domains.tasks.model import TaskStream

FIRST_LOOK, LAST_LOOK = 0.02, 0.5
"""Seconds between two looks at a message that waits for its turn: longer and longer."""


Frame = tuple[str, dict[str, Any], str | None]
"""Kind, data and id."""


class Streams:
    def __init__(self, messaging: Messaging, of_task: TaskStream) -> None:
        self._messaging = messaging
        self._of_task = of_task

    async def of(self, stored: Stored, last_event_id: str | None) -> AsyncIterator[Frame]:
        """Waits until the message is with a task or over, then follows. Ends with one terminal frame."""
        pause = FIRST_LOOK
        while stored.task_id is None and stored.status not in ENDS:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LAST_LOOK)
            stored = await self._messaging.find(stored.tenant, stored.message_id)
        if stored.task_id is None:
            kind = "complete" if stored.status == "completed" else "error"
            yield kind, {"message_id": stored.message_id, "status": stored.status, "response": stored.response}, None
            return
        async for step in self._of_task(stored.tenant, stored.task_id, last_event_id):
            yield step.kind, {"message_id": stored.message_id, **step.data}, step.id
