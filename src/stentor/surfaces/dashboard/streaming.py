"""Executes an instruction as a stream of events: routing, token, then one terminal complete or error.

The gateway owns the task: it continues when the reader disconnects. Error events carry fixed messages, never the text
of an exception. `instruction` plans the task. Source: second contract, "Events".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator

from stentor.core.errors import RoutingDenied, StentorError
from stentor.core.jsontext import JsonObject
from stentor.domains.atp import model as atp
from stentor.domains.conversation.model import extract_result_text
from stentor.domains.tasknotes.model import TaskNoteRecord
from stentor.domains.tasks.model import TaskStreamStep
from stentor.surfaces.dashboard import instruction
from stentor.surfaces.dashboard.gateway import TaskGateway
from stentor.surfaces.dashboard.instruction import Instruction, PlannedTask
from stentor.surfaces.dashboard.presenters import resources
from stentor.surfaces.dashboard.store import DashboardStore
from stentor.web.sse import SseEvent
from stentor_vault.notes import frontmatter
from stentor_vault.notes.model import NoSuchNote, Vault

MAX_RECONNECTS, RECONNECT_PAUSE_SECONDS = 15, 1.0
"""Attempts without a new event. Together they outlast the start of a gateway on a busy machine."""
NOTE_WAIT_SECONDS, NOTE_POLL_SECONDS = 3.0, 0.02
"""How long the error event of a failed routing waits for the task's note, which is written after the row."""
SUMMARY_CHARACTERS = 1_000
STREAM_LOST_MESSAGE = "Connection to the gateway lost. The task continues; look it up by its ID."
SHUTDOWN_MESSAGE = "The dashboard service is shutting down. The task continues; look it up by its ID."
STREAM_FAILED_MESSAGE = "Internal error in this stream. The task continues; look it up by its ID."
log = logging.getLogger(__name__)


class InstructionExecutor:
    """Submits instructions and streams their progress.

    `notes` is the vault with the tasks' notes, None without a mirror; setting `closing` ends all streams.
    """

    def __init__(
        self, stores: DashboardStore, gateway: TaskGateway, notes: Vault | None, closing: asyncio.Event
    ) -> None:
        self._stores = stores
        self._gateway = gateway
        self._notes = notes
        self._closing = closing

    async def execute(self, body: Instruction, credential: str) -> AsyncIterator[SseEvent]:
        """Submit the task and return its events when it is stored.

        Raises InvalidRequest, Forbidden, ServiceUnavailable. A failed routing is an error event.
        """
        agent_id = None if body.agent is None else await self._stores.resolve_agent_id(body.agent)
        planned = instruction.plan_task(body, agent_id)
        try:
            accepted = await self._gateway.submit(planned, credential)
        except RoutingDenied as denial:
            details = denial.details or {}
            return _with_envelope(self._routing_failed(denial), planned, details.get("provenance_id"))
        events = self._stream_task(accepted.task_id, credential)
        return _with_envelope(events, planned, accepted.provenance_id)

    async def _routing_failed(self, denial: RoutingDenied) -> AsyncIterator[SseEvent]:
        task_id = (denial.details or {}).get("task_id")
        if isinstance(task_id, str):
            await self._wait_for_note(task_id)
        error = f"Routing failed ({denial.code}); no agent was assigned."
        yield SseEvent("error", {"error": error, "task_id": task_id})

    async def _stream_task(self, task_id: str, credential: str) -> AsyncIterator[SseEvent]:
        """Yield the events of a task. Whatever fails, the reader gets a terminal event with the task's id."""
        try:
            async for event in self._stream_with_reconnect(task_id, credential):
                yield event
        except Exception:
            log.exception("streaming: stream failed task_id=%s", task_id)
            yield SseEvent("error", {"error": STREAM_FAILED_MESSAGE, "task_id": task_id})

    async def _stream_with_reconnect(self, task_id: str, credential: str) -> AsyncIterator[SseEvent]:
        after, has_tokens, attempts = None, False, 0
        while True:
            async for event in self._stream_until_closing(task_id, after, credential):
                if event.id is not None:
                    after, attempts = event.id, 0  # only attempts without progress count
                if event.kind == "routing":
                    fields = ("decision", "agent_name", "task_id", "provenance_id")
                    yield SseEvent("routing", {name: event.data.get(name) for name in fields})
                elif event.kind == "token" and event.data["text"]:
                    has_tokens = True
                    yield SseEvent("token", {"text": event.data["text"]})
                elif event.kind == "complete":
                    if not has_tokens:  # an agent that does not stream: send its result as one token
                        yield SseEvent("token", {"text": extract_result_text(event.data["result"])})
                    yield SseEvent("complete", await self._complete(task_id, event.data))
                    return
                elif event.kind == "error" and "status" in event.data:  # without a status only the stream ended
                    yield SseEvent("error", {"error": f"The task is {event.data['status']}.", "task_id": task_id})
                    return
            attempts += 1
            if self._closing.is_set() or attempts > MAX_RECONNECTS:
                message = SHUTDOWN_MESSAGE if self._closing.is_set() else STREAM_LOST_MESSAGE
                yield SseEvent("error", {"error": message, "task_id": task_id})
                return
            with contextlib.suppress(TimeoutError):
                # A pause that ends at once when the service stops.
                async with asyncio.timeout(RECONNECT_PAUSE_SECONDS):
                    await self._closing.wait()

    async def _stream_until_closing(
        self, task_id: str, after: str | None, credential: str
    ) -> AsyncIterator[TaskStreamStep]:
        """Yield the gateway's events until the connection is lost or the service shuts down."""
        events = self._gateway.stream_task(task_id, after, credential)
        # Wait for both, so that an idle stream does not delay the shutdown.
        # One future for the whole stream: a new one for each event would be left behind.
        closing = asyncio.ensure_future(self._closing.wait())
        next_event: asyncio.Future[TaskStreamStep | None] | None = None
        try:
            while True:
                next_event = asyncio.ensure_future(anext(events, None))
                await asyncio.wait({next_event, closing}, return_when=asyncio.FIRST_COMPLETED)
                event = next_event.result() if next_event.done() else None
                if event is None:
                    return
                yield event
        except StentorError as error:  # the gateway is unavailable for now: the caller reconnects
            log.info("streaming: connection lost task_id=%s error=%s", task_id, error.message)
        finally:
            closing.cancel()
            if next_event is not None:
                next_event.cancel()
                # The generator cannot be closed while `anext` still runs in it.
                await asyncio.wait({next_event})
            if isinstance(events, AsyncGenerator):
                await events.aclose()

    async def _complete(self, task_id: str, data: JsonObject) -> JsonObject:
        try:
            history = await self._stores.get_history(task_id)
            record, events = history.record, history.events.last
        except StentorError:  # the task is complete whether or not its rows can be read
            record, events = None, []
        mirrored = record is not None and self._stores.has_task_notes
        return {
            "task_id": task_id,
            "agent_name": data["agent_name"],
            "status": data["status"],
            "summary": extract_result_text(data["result"])[:SUMMARY_CHARACTERS],
            "note_path": resources.task_note_path(self._stores.tenant, record) if record and mirrored else None,
            "error": data["error"],
            "provenance_id": data["provenance_id"],
            "provider": resources.latest_metadata(events, "provider"),
            "model": resources.latest_metadata(events, "model"),
            "outcome_class": data["outcome_class"],
            "learning_eligible": data["learning_eligible"],
        }

    async def _wait_for_note(self, task_id: str) -> None:
        """Wait until the task's note has the failed status, which its row has already."""
        try:
            record = await self._stores.find_task(task_id)
        except StentorError:
            return
        deadline = time.monotonic() + NOTE_WAIT_SECONDS
        while record is not None and self._notes is not None and time.monotonic() < deadline:
            if await self._is_note_current(self._notes, record):
                return
            await asyncio.sleep(NOTE_POLL_SECONDS)

    async def _is_note_current(self, notes: Vault, record: TaskNoteRecord) -> bool:
        """Return whether the note has the status of the row; true for an unreadable note, which ends the wait."""
        try:
            note = await notes.read(resources.task_note_path(self._stores.tenant, record))
            return frontmatter.read(note.content.decode()).get("status") == record.display_status
        except NoSuchNote:
            return False
        except (StentorError, UnicodeDecodeError):
            log.warning("streaming: note unreadable task_id=%s", record.task_id)
            return True


async def _with_envelope(
    events: AsyncIterator[SseEvent], planned: PlannedTask, provenance_id: str | None
) -> AsyncIterator[SseEvent]:
    """Add the ATP header and the provenance id to the data of every event; the event's own fields win."""
    common = {"atp": {"header": atp.header_to_json(planned.header)}, "provenance_id": provenance_id}
    async for event in events:
        yield SseEvent(event.event, common | event.data, event.id)
