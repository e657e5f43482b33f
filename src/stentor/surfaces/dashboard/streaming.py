"""An instruction carried out, as frames: routing, token, and one terminal complete or error.

The work is the gateway's: it goes on whether or not anybody reads. Frames say what happened in sentences of ours,
never in the words of an exception. Source: second contract, "Events".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from stentor.core.errors import RoutingDenied, StentorError
from stentor.core.runlog import RunLogEvent
from stentor.domains.atp import model as atp
from stentor.domains.conversation.model import extract_result_text
from stentor.domains.tasknotes.model import TaskNoteRecord
from stentor.surfaces.dashboard import instruction
from stentor.surfaces.dashboard.gateway import TaskGateway, TaskStreamEvent
from stentor.surfaces.dashboard.instruction import Instruction, PlannedTask
from stentor.surfaces.dashboard.presenters import resources
from stentor.surfaces.dashboard.store import DashboardStore
from stentor.web.sse import SseEvent
from stentor_vault.notes import frontmatter
from stentor_vault.notes.model import NoSuchNote, Vault

MAX_RECONNECTS, PAUSE_SECONDS = 15, 1.0
"""How often a stream that broke off is taken up again: longer than a gateway takes to start on a busy machine."""
NOTE_WAIT_SECONDS, NOTE_POLL_SECONDS = 3.0, 0.02
"""How long the error of a failed routing waits for the task's note, which is written behind the row."""
SUMMARY_CHARACTERS = 1_000
"""Characters of the result in the last frame."""
STREAM_LOST_MESSAGE = "The stream broke off. The work goes on; ask for the task."
SHUTDOWN_MESSAGE = "The dashboard service is stopping. The work goes on; ask for the task."
STREAM_FAILED_MESSAGE = "The dashboard service failed on this stream. The work goes on; ask for the task."
log = logging.getLogger(__name__)


class InstructionExecutor:
    """`notes` is the vault with the tasks' notes, None when tasks are not mirrored; `closing` ends all streams."""

    def __init__(
        self, stores: DashboardStore, gateway: TaskGateway, notes: Vault | None, closing: asyncio.Event
    ) -> None:
        self._stores = stores
        self._gateway = gateway
        self._notes = notes
        self._closing = closing

    async def execute(self, body: Instruction, credential: str) -> AsyncIterator[SseEvent]:
        """Returns when the task is stored. Raises InvalidRequest, Forbidden, ServiceUnavailable; a failed routing
        is an error frame.
        """
        agent_id = None if body.agent is None else await self._stores.resolve_agent_id(body.agent)
        planned = instruction.plan_task(body, agent_id)
        try:
            accepted = await self._gateway.submit(planned, credential)
        except RoutingDenied as denial:
            details = denial.details or {}
            return _enveloped(self._denied(denial), planned, details.get("provenance_id"))
        frames = self._frames(accepted.task_id, credential)
        return _enveloped(frames, planned, accepted.provenance_id)

    async def _denied(self, denial: RoutingDenied) -> AsyncIterator[SseEvent]:
        task_id = (denial.details or {}).get("task_id")
        if isinstance(task_id, str):
            await self._marked(task_id)
        error = f"Routing failed ({denial.code}); nobody was given the task."
        yield SseEvent("error", {"error": error, "task_id": task_id})

    async def _frames(self, task_id: str, credential: str) -> AsyncIterator[SseEvent]:
        """Fails closed: whatever goes wrong, the reader gets a terminal frame that names the task."""
        try:
            async for frame in self._until_the_end(task_id, credential):
                yield frame
        except Exception:
            log.exception("the stream of task %r failed", task_id)
            yield SseEvent("error", {"error": STREAM_FAILED_MESSAGE, "task_id": task_id})

    async def _until_the_end(self, task_id: str, credential: str) -> AsyncIterator[SseEvent]:
        after, silent, tries = None, True, 0
        while True:
            async for step in self._while_open(task_id, after, credential):
                if step.id is not None:
                    after, tries = step.id, 0
                if step.kind == "routing":
                    yield _routing(step)
                elif step.kind == "token" and step.data["text"]:
                    silent = False
                    yield SseEvent("token", {"text": step.data["text"]})
                elif step.kind == "complete":
                    if silent:
                        yield SseEvent("token", {"text": extract_result_text(step.data["result"])})
                    yield SseEvent("complete", await self._complete(task_id, step.data))
                    return
                elif step.kind == "error" and "status" in step.data:  # else the stream ended, not the task
                    yield SseEvent("error", {"error": f"The task is {step.data['status']}.", "task_id": task_id})
                    return
            tries += 1
            if self._closing.is_set() or tries > MAX_RECONNECTS:
                yield SseEvent(
                    "error",
                    {"error": SHUTDOWN_MESSAGE if self._closing.is_set() else STREAM_LOST_MESSAGE, "task_id": task_id},
                )
                return
            await self._pause()

    async def _while_open(self, task_id: str, after: str | None, credential: str) -> AsyncIterator[TaskStreamEvent]:
        """The steps, but no longer than the service stays."""
        steps = self._gateway.stream_task(task_id, after, credential)
        leaving = asyncio.ensure_future(self._closing.wait())
        coming: asyncio.Future[TaskStreamEvent | None] | None = None
        try:
            while True:
                coming = asyncio.ensure_future(anext(steps, None))
                await asyncio.wait({coming, leaving}, return_when=asyncio.FIRST_COMPLETED)
                step = coming.result() if coming.done() else None
                if step is None:
                    return
                yield step
        except StentorError as error:  # the gateway is gone for now
            log.info("the stream of task %r broke off: %s", task_id, error.message)
        finally:
            leaving.cancel()
            if coming is not None:
                coming.cancel()
                await asyncio.wait({coming})
            if isinstance(steps, AsyncGenerator):
                await steps.aclose()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_SECONDS):
                await self._closing.wait()

    async def _complete(self, task_id: str, data: dict[str, Any]) -> dict[str, Any]:
        record, events = await self._known(task_id)
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

    async def _known(self, task_id: str) -> tuple[TaskNoteRecord | None, list[RunLogEvent]]:
        """Fails open: the work is done whether or not the rows can be read just now."""
        try:
            history = await self._stores.get_history(task_id)
        except StentorError:
            return None, []
        return history.record, history.events.last

    async def _marked(self, task_id: str) -> None:
        """Wait until the task's note says that routing failed; the row says so already."""
        try:
            record = await self._stores.find_task(task_id)
        except StentorError:
            return
        until = time.monotonic() + NOTE_WAIT_SECONDS
        while record is not None and self._notes is not None and time.monotonic() < until:
            if await self._note_says(self._notes, record):
                return
            await asyncio.sleep(NOTE_POLL_SECONDS)

    async def _note_says(self, notes: Vault, record: TaskNoteRecord) -> bool:
        try:
            note = await notes.read(resources.task_note_path(self._stores.tenant, record))
            return frontmatter.read(note.content.decode()).get("status") == record.display_status
        except NoSuchNote:
            return False
        except (StentorError, UnicodeDecodeError):
            log.warning("the note of task %r cannot be read", record.task_id)
            return True


async def _enveloped(
    frames: AsyncIterator[SseEvent], planned: PlannedTask, provenance_id: str | None
) -> AsyncIterator[SseEvent]:
    """Put the envelope on every frame; one that stands for an event of its own keeps that event's id."""
    common = {"atp": {"header": atp.header_to_json(planned.header)}, "provenance_id": provenance_id}
    async for frame in frames:
        yield SseEvent(frame.event, common | frame.data, frame.id)


def _routing(step: TaskStreamEvent) -> SseEvent:
    shown = ("decision", "agent_name", "task_id", "provenance_id")
    return SseEvent("routing", {name: step.data.get(name) for name in shown})
