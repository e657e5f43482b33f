"""The inbox: submits each note in `Tasks/Inbox` as a task, once, and writes the answer as a note next to it.

A user's note is never changed. It is submitted only after it was unchanged for a while, because editors save while the
user types. The task's id is derived from the path, the content and the number of the attempt, so that a retry after a
crash submits no second task. `inbox_notes.py` parses the notes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Database
from stentor.core.errors import Conflict, RoutingDenied, ServiceUnavailable
from stentor.core.fanout.live import TERMINAL_EVENTS, Hub
from stentor.domains.tasknotes import inbox_notes, render, store
from stentor.domains.tasknotes.inbox_notes import InboxNote, InvalidTaskNote
from stentor.domains.tasknotes.model import INBOX_FOLDER, TASKS_FOLDER, is_in_inbox
from stentor.domains.tasks.model import TaskDraft
from stentor.domains.tasks.submission.service import SubmissionService
from stentor_vault.notes.model import (
    MAX_NOTE_BYTES,
    NO_FILE,
    NameTaken,
    NoSuchNote,
    NoteChanged,
    ReadOnlyNote,
    Stat,
    UnreadablePath,
    Vault,
    content_hash,
)
from stentor_vault.notes.paths import InvalidPath, split_path

SCAN_SECONDS = 5.0
"""Time between two scans of the folder if no event of the file system triggers one."""
MIN_PAUSE_SECONDS = 0.1
MAX_ANSWERS_PER_SCAN = 100
MAX_ANSWER_NUMBER = 100
log = logging.getLogger(__name__)

FileState = tuple[int, int, bool]
"""Size and modification time of a note, and whether the folder has its answer."""


class QuietPeriod:
    """Tracks how long each note is unchanged, by this process's clock: the time of a file may be another machine's."""

    def __init__(self, quiet_seconds: float) -> None:
        self._quiet_seconds = quiet_seconds
        self._since: dict[str, tuple[FileState, float]] = {}
        self._handled: dict[str, FileState] = {}

    def find_quiet(self, states: dict[str, FileState], now: float) -> list[str]:
        """Return the notes that are unchanged for long enough and not yet handled; forget the deleted ones."""
        before = self._since
        unchanged = {
            path: before[path] for path, state in states.items() if path in before and before[path][0] == state
        }
        self._since = {path: unchanged.get(path, (state, now)) for path, state in states.items()}
        self._handled = {path: state for path, state in self._handled.items() if states.get(path) == state}
        return [
            path
            for path, (_, since) in self._since.items()
            if path not in self._handled and now - since >= self._quiet_seconds
        ]

    def mark_handled(self, path: str) -> None:
        """Skip the note until it changes."""
        if path in self._since:
            self._handled[path] = self._since[path][0]

    @property
    def next_scan_seconds(self) -> float:
        """Return after how many seconds the next scan may find a quiet note."""
        if len(self._handled) < len(self._since):
            return min(SCAN_SECONDS, max(MIN_PAUSE_SECONDS, self._quiet_seconds / 4))
        return SCAN_SECONDS


class TaskInbox:
    """Background job that turns notes into tasks.

    `get_agent_name` returns the name for an agent's id. `allowed_capabilities` restricts what a note may require,
    because the author of a note is unknown; empty allows all.
    """

    def __init__(
        self,
        db: Database,
        hub: Hub,
        vault: Vault,
        submission: SubmissionService,
        tenant: str,
        quiet_seconds: float,
        get_agent_name: Callable[[str], str | None],
        allowed_capabilities: Collection[str],
    ) -> None:
        self._db = db
        self._vault = vault
        self._submission = submission
        self.principal = Principal("inbox", "admin", frozenset(("read", "write")), tenant)
        self._agent_name = get_agent_name
        self._allowed = frozenset(allowed_capabilities)
        self._quiet_period = QuietPeriod(quiet_seconds)
        self._open_task_ids: set[str] = set()
        self._failed_paths: set[str] = set()
        self._is_outage_logged = False
        self._wake = asyncio.Event()
        hub.listen(self._on_task_end, TERMINAL_EVENTS)

    @property
    def _tenant(self) -> str:
        return self.principal.tenant

    def _on_task_end(self, tenant: str, task_id: str, events: list[Any]) -> None:
        if task_id in self._open_task_ids and tenant == self._tenant:
            self._wake.set()

    def notify_changed(self, paths: Iterable[str]) -> None:
        """Trigger a scan if one of the changed paths of the vault belongs to the inbox."""
        if any(path == TASKS_FOLDER or is_in_inbox(path) for path in paths):
            self._wake.set()

    async def run(self) -> None:
        """Run forever; waits out outages of the database and of the vault."""
        while True:
            # Before the scan: a change while it runs must cause another one.
            self._wake.clear()
            try:
                await self.scan()
                self._is_outage_logged = False
            except (ServiceUnavailable, OSError) as error:
                self._log_outage(error)
            except Exception:
                # Fails open: an error in one scan must not end the job.
                log.exception("inbox: scan failed")
            # A lower bound, because a sync that writes many files wakes the job with each.
            await asyncio.sleep(MIN_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._quiet_period.next_scan_seconds):
                    await self._wake.wait()

    async def scan(self) -> None:
        """Submit the notes that are quiet, and write the answers of finished tasks."""
        # Before the files are listed: a note that was deleted before its task ended gets no answer.
        answerable = await self._db.read(lambda tx: store.list_answerable_notes(tx, self._tenant, MAX_ANSWERS_PER_SCAN))
        stats = {stat.path: stat for stat in await self._vault.walk(INBOX_FOLDER)}
        candidates = {path: stat for path, stat in stats.items() if inbox_notes.is_candidate(path)}
        known = await self._db.read(lambda tx: store.list_inbox_notes(tx, self._tenant)) if candidates else {}
        self._open_task_ids = {note.task_id for note in known.values() if note.state == "asked" and note.task_id}
        states = {
            path: (stat.size, stat.modified_at, _has_answer(known.get(path), stat, stats))
            for path, stat in candidates.items()
        }
        for path in self._quiet_period.find_quiet(states, time.monotonic()):
            await self._guarded(path, self._process(candidates[path], known.get(path), has_answer=states[path][2]))
        for note in answerable:
            if note.path not in self._failed_paths:
                await self._guarded(note.path, self._answer(note, candidates.get(note.path)))

    async def _guarded(self, path: str, work: Coroutine[Any, Any, None]) -> None:
        """Run the work for a note. Fails open: an unexpected error skips this note and not the others."""
        try:
            await work
        except UnreadablePath as error:
            log.warning("inbox: note skipped until it changes or the service restarts reason=%s", error)
            self._failed_paths.add(path)
            self._quiet_period.mark_handled(path)
        # An outage concerns all notes: the scan ends, and none is marked as failed.
        except (ServiceUnavailable, OSError):
            raise
        except Exception:
            log.exception("inbox: note skipped until it changes or the service restarts path=%r", path)
            self._failed_paths.add(path)
            self._quiet_period.mark_handled(path)

    async def _process(self, stat: Stat, known: InboxNote | None, *, has_answer: bool) -> None:
        """Submit the note, adopt its existing answer, or do nothing."""
        content = await self._content(stat)
        if content is None:
            return
        digest = content_hash(content)
        step, attempt = inbox_notes.choose_step(known, digest, stat.modified_at, has_answer=has_answer)
        if step != "nothing":
            note = InboxNote(stat.path, digest, stat.modified_at, attempt, None, None, "answered")
            await (self._submit(note, content, known) if step == "ask" else self._save(note))
        self._failed_paths.discard(stat.path)
        self._quiet_period.mark_handled(stat.path)

    async def _content(self, stat: Stat) -> bytes | None:
        """Return the content; None if the note changed or was deleted since the scan, or is too large.

        Empty for a name that no vault accepts: `_submit` finds that again, and the answer says so.
        """
        if stat.size > MAX_NOTE_BYTES:
            self._quiet_period.mark_handled(stat.path)
            return None
        try:
            note = await self._vault.read(stat.path)
        except NoSuchNote:
            return None
        except InvalidPath:
            return b""
        is_unchanged = (note.stat.size, note.stat.modified_at) == (stat.size, stat.modified_at)
        # Size and content are read one after the other, so a note that is being saved could be half of each.
        return note.content if is_unchanged and len(note.content) == stat.size else None

    async def _submit(self, note: InboxNote, content: bytes, known: InboxNote | None) -> None:
        """Submit the task, then save the note's row: after a crash in between, a retry derives the same task id."""
        problem, task_id = None, None
        try:
            split_path(note.path)
            draft = inbox_notes.parse_task_note(content)
            if draft is None:
                return
            self._check_authority(draft)
            task_id = inbox_notes.derive_task_id(note.path, note.content_hash, note.attempt)
            # Before the submission: a short task may end before this method returns.
            self._open_task_ids.add(task_id)
            await self._submission.submit(self.principal, msgspec.structs.replace(draft, id=task_id))
        except RoutingDenied:
            pass  # the task is stored as failed and answered like any failed task
        except InvalidTaskNote as error:
            problem = "\n".join(error.problems)
        except InvalidPath as error:
            problem = f"{error.message} Rename the note."
        except Conflict as error:
            problem, task_id = error.message, None
        answer_path, answer_hash = (known.answer_path, known.answer_hash) if known else (None, None)
        await self._save(
            msgspec.structs.replace(
                note, state="asked", task_id=task_id, problem=problem, answer_path=answer_path, answer_hash=answer_hash
            )
        )
        # A note with a problem is answered by the next scan, which need not wait for anything.
        self._wake.set()

    def _check_authority(self, draft: TaskDraft) -> None:
        """Raise InvalidTaskNote for a forbidden capability, and for none: such a task could be routed to any agent."""
        required = frozenset(draft.required_capabilities)
        if self._allowed and not (required and required <= self._allowed):
            names = ", ".join(sorted(self._allowed))
            raise InvalidTaskNote(
                [f"A note of this inbox may require these capabilities, and at least one of them: {names}."]
            )

    async def _answer(self, note: InboxNote, stat: Stat | None) -> None:
        """Write the answer of a note; none if the note was deleted."""
        content, is_refusal = await self._render_answer(note, stat)
        path = None if stat is None else await self._write(note, content)
        answered = msgspec.structs.replace(
            note,
            state="refused" if is_refusal else "answered",
            answer_path=path,
            answer_hash=None if path is None else content_hash(content),
        )
        await self._save(answered)
        self._open_task_ids.discard(note.task_id or "")

    async def _render_answer(self, note: InboxNote, stat: Stat | None) -> tuple[bytes, bool]:
        """Return the answer, and whether it is a refusal, after which a changed note is submitted again."""
        if note.problem is not None or note.task_id is None:
            return render.render_problem(note.problem or "It was not submitted."), True
        task_id = note.task_id
        (record,) = await self._db.read(lambda tx: store.get_records(tx, self._tenant, [task_id]))
        agent = record.assigned_agent and self._agent_name(record.assigned_agent)
        is_changed = stat is not None and stat.modified_at != note.modified_at
        return render.render_answer(record, agent, note_changed=is_changed), record.outcome_class == "routing_failed"

    async def _write(self, note: InboxNote, content: bytes) -> str | None:
        """Write the answer and return its path. Overwrites only an answer that this inbox wrote and nobody changed."""
        if note.answer_path is not None and note.answer_hash is not None:
            with contextlib.suppress(NoteChanged, NameTaken, ReadOnlyNote):
                await self._vault.write(note.answer_path, content, note.answer_hash)
                return note.answer_path
        for number in range(1, MAX_ANSWER_NUMBER):
            path = inbox_notes.build_answer_path(note.path, number)
            try:
                await self._vault.write(path, content, NO_FILE)
            except NoteChanged as error:
                # The same bytes: this answer was written before a crash.
                if error.current == content_hash(content):
                    return path
            except NameTaken:
                continue
            else:
                return path
        log.error("inbox: answer not written, all names are taken path=%r answers=%d", note.path, MAX_ANSWER_NUMBER - 1)
        return None

    async def _save(self, note: InboxNote) -> None:
        await self._db.write(lambda tx: store.save_inbox_note(tx, self._tenant, note))

    def _log_outage(self, error: Exception) -> None:
        """Log the first error of an outage only."""
        if not self._is_outage_logged:
            log.error("inbox: waiting for the vault or the database reason=%s", error)
            self._is_outage_logged = True


def _has_answer(known: InboxNote | None, stat: Stat, stats: dict[str, Stat]) -> bool:
    path = (
        known.answer_path
        if known is not None and known.answer_path is not None
        else inbox_notes.build_answer_path(stat.path)
    )
    return path in stats
