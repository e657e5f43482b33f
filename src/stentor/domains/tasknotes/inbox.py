"""Notes that people put into `Tasks/Inbox` become tasks, once each, and get their answers beside them.

A person's note is never changed. It is taken when it has come to rest, because editors save while people
type. Its task's id follows from its path, its content and how often it was asked, so that whoever takes
it after a crash makes no second task of it.
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
from stentor.core.live import Hub
from stentor.domains.notes.model import (
    MAX_NOTE_BYTES,
    NO_FILE,
    NameTaken,
    NoSuchNote,
    NoteChanged,
    Stat,
    Vault,
    content_hash,
)
from stentor.domains.notes.paths import InvalidPath
from stentor.domains.tasknotes import inbox_notes, render, store
from stentor.domains.tasknotes.inbox_notes import InboxNote, InvalidTaskNote
from stentor.domains.tasknotes.model import INBOX_FOLDER, TASKS_FOLDER
from stentor.domains.tasks.model import TaskDraft
from stentor.domains.tasks.submission import SubmissionService

SCAN_SECONDS = 5.0
"""Between looks at the folder, when no event of the file system brought one about."""
MIN_PAUSE_SECONDS = 0.1
MAX_ANSWERS_PER_SCAN = 100
MAX_ANSWER_NUMBER = 100
log = logging.getLogger(__name__)

FileState = tuple[int, int, bool]
"""Size and time of a note, and whether its answer lies beside it."""


class QuietPeriod:
    """How long each note has lain as it lies now, by this process's own clock: other machines' times may be off."""

    def __init__(self, quiet: float) -> None:
        self._quiet = quiet
        self._since: dict[str, tuple[FileState, float]] = {}
        self._handled: dict[str, FileState] = {}

    def find_quiet(self, marks: dict[str, FileState], now: float) -> list[str]:
        """Notes that have come to rest and were not handled as they are; forgets those that are gone."""
        before = self._since
        known = {path: before[path] for path, mark in marks.items() if path in before and before[path][0] == mark}
        self._since = {path: known.get(path, (mark, now)) for path, mark in marks.items()}
        self._handled = {path: mark for path, mark in self._handled.items() if marks.get(path) == mark}
        return [p for p, (_, since) in self._since.items() if p not in self._handled and now - since >= self._quiet]

    def mark_handled(self, path: str) -> None:
        """It need not be looked at again as it is now."""
        if path in self._since:
            self._handled[path] = self._since[path][0]

    @property
    def next_scan_seconds(self) -> float:
        """Seconds until it may be worth to look again."""
        if len(self._handled) < len(self._since):
            return min(SCAN_SECONDS, max(MIN_PAUSE_SECONDS, self._quiet / 4))
        return SCAN_SECONDS


class TaskInbox:
    """`agent_name` answers the name of an agent of the tenant. `quiet` in seconds. `allowed` are the capabilities that
    a note may ask for, because nobody knows who wrote it; empty is all.
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
        allowed_capabilities: Collection[str] = (),
    ) -> None:
        self._db = db
        self._vault = vault
        self._submission = submission
        self._principal = Principal("inbox", "admin", frozenset(("read", "write")), tenant)
        self._agent_name = get_agent_name
        self._allowed = frozenset(allowed_capabilities)
        self._rest = QuietPeriod(quiet_seconds)
        self._open: set[str] = set()
        self._broken: set[str] = set()
        self._told = False
        self._wake = asyncio.Event()
        hub.listeners.append(self._saw)

    @property
    def _tenant(self) -> str:
        return self._principal.tenant

    def _saw(self, tenant: str, task_id: str, events: list[Any]) -> None:
        if task_id in self._open and tenant == self._tenant:
            self._wake.set()

    def notify_changed(self, paths: Iterable[str]) -> None:
        """Something changed at these paths of the vault."""
        if any(path in (TASKS_FOLDER, INBOX_FOLDER) or path.startswith(f"{INBOX_FOLDER}/") for path in paths):
            self._wake.set()

    async def run(self) -> None:
        """For ever; outages of the database and of the vault are waited out."""
        while True:
            self._wake.clear()
            try:
                await self.scan()
                self._told = False
            except (ServiceUnavailable, OSError) as error:
                self._tell(error)
            except Exception:
                # Fails open: a note that breaks one look must not end all later ones.
                log.exception("the inbox could not be looked through")
            await asyncio.sleep(MIN_PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rest.next_scan_seconds):
                    await self._wake.wait()

    async def scan(self) -> None:
        """Take the notes that have come to rest, and write the answers that are known."""
        stats = {stat.path: stat for stat in await self._vault.walk(INBOX_FOLDER)}
        candidates = {path: stat for path, stat in stats.items() if inbox_notes.is_candidate(path)}
        known = await self._db.read(lambda tx: store.list_inbox_notes(tx, self._tenant)) if candidates else {}
        self._open = {asked.task_id for asked in known.values() if asked.state == "asked" and asked.task_id}
        marks = {path: (s.size, s.modified_at, _answered(known.get(path), s, stats)) for path, s in candidates.items()}
        for path in self._rest.find_quiet(marks, time.monotonic()):
            await self._guarded(path, self._take(candidates[path], known.get(path), answered=marks[path][2]))
        for asked in await self._db.read(
            lambda tx: store.list_answerable_notes(tx, self._tenant, MAX_ANSWERS_PER_SCAN)
        ):
            if asked.path not in self._broken:
                await self._guarded(asked.path, self._answer(asked, candidates.get(asked.path)))

    async def _guarded(self, path: str, work: Coroutine[Any, Any, None]) -> None:
        """One note that breaks its work must not keep back the others."""
        try:
            await work
        except (ServiceUnavailable, OSError):
            raise
        except Exception:
            log.exception(
                "the note %r in the inbox is left alone until it changes or the service is started again", path
            )
            self._broken.add(path)
            self._rest.mark_handled(path)

    async def _take(self, stat: Stat, known: InboxNote | None, *, answered: bool) -> None:
        content = await self._content(stat)
        if content is None:
            return
        digest = content_hash(content)
        step, attempt = inbox_notes.choose_step(known, digest, stat.modified_at, has_answer=answered)
        if step != "nothing":
            asked = InboxNote(stat.path, digest, stat.modified_at, attempt, None, None, "answered")
            await (self._ask(asked, content, known) if step == "ask" else self._put(asked))
        self._broken.discard(stat.path)
        self._rest.mark_handled(stat.path)

    async def _content(self, stat: Stat) -> bytes | None:
        """None when the note is not as it was a moment ago, and of what is too large to be a note at all."""
        if stat.size > MAX_NOTE_BYTES:
            self._rest.mark_handled(stat.path)
            return None
        try:
            note = await self._vault.read(stat.path)
        except (NoSuchNote, InvalidPath):
            return None
        same = (note.stat.size, note.stat.modified_at) == (stat.size, stat.modified_at)
        return note.content if same and len(note.content) == stat.size else None

    async def _ask(self, asked: InboxNote, content: bytes, known: InboxNote | None) -> None:
        """Submit it; the row comes after the task, whose id does not change until then."""
        problem, task_id = None, None
        try:
            draft = inbox_notes.parse_task_note(content)
            if draft is None:
                return
            self._check_authority(draft)
            task_id = inbox_notes.derive_task_id(asked.path, asked.content_hash, asked.attempt)
            self._open.add(task_id)
            await self._submission.submit(self._principal, msgspec.structs.replace(draft, id=task_id))
        except RoutingDenied:
            pass  # the task is stored as failed, and is answered like any that failed
        except InvalidTaskNote as error:
            problem = "\n".join(error.problems)
        except Conflict as error:
            problem, task_id = error.message, None
        before = (known.answer_path, known.answer_hash) if known else (None, None)
        await self._put(
            msgspec.structs.replace(
                asked, state="asked", task_id=task_id, problem=problem, answer_path=before[0], answer_hash=before[1]
            )
        )
        self._wake.set()

    def _check_authority(self, draft: TaskDraft) -> None:
        """Raises Malformed. A task that requires nothing could reach every agent, so it is refused too."""
        wanted = frozenset(draft.required_capabilities)
        if self._allowed and not (wanted and wanted <= self._allowed):
            names = ", ".join(sorted(self._allowed))
            raise InvalidTaskNote(
                [f"A note of this inbox may require these capabilities, and at least one of them: {names}."]
            )

    async def _answer(self, asked: InboxNote, stat: Stat | None) -> None:
        """A note that is gone needs none: nothing is there that it could stand beside."""
        content, refused = await self._content_of_answer(asked, stat)
        path = None if stat is None else await self._write(asked, content)
        done = msgspec.structs.replace(
            asked,
            state="refused" if refused else "answered",
            answer_path=path,
            answer_hash=None if path is None else content_hash(content),
        )
        await self._put(done)
        self._open.discard(asked.task_id or "")

    async def _content_of_answer(self, asked: InboxNote, stat: Stat | None) -> tuple[bytes, bool]:
        """And whether the note may be tried again when it changed."""
        if asked.problem is not None or asked.task_id is None:
            return render.render_problem(asked.problem or "It was not taken."), True
        task_id = asked.task_id
        (record,) = await self._db.read(lambda tx: store.get_records(tx, self._tenant, [task_id]))
        agent = record.assigned_agent and self._agent_name(record.assigned_agent)
        changed = stat is not None and stat.modified_at != asked.modified_at
        return render.render_answer(record, agent, note_changed=changed), record.outcome_class == "routing_failed"

    async def _write(self, asked: InboxNote, content: bytes) -> str | None:
        """The path of the answer; never over bytes that are not an earlier answer of ours."""
        if asked.answer_path is not None and asked.answer_hash is not None:
            with contextlib.suppress(NoteChanged, NameTaken):
                await self._vault.write(asked.answer_path, content, asked.answer_hash)
                return asked.answer_path
        for number in range(1, MAX_ANSWER_NUMBER):
            path = inbox_notes.build_answer_path(asked.path, number)
            try:
                await self._vault.write(path, content, NO_FILE)
            except NoteChanged as error:
                if error.current == content_hash(content):
                    return path
            except NameTaken:
                continue
            else:
                return path
        log.error("the answer to %r has no place: %d lie there already", asked.path, MAX_ANSWER_NUMBER - 1)
        return None

    async def _put(self, asked: InboxNote) -> None:
        await self._db.write(lambda tx: store.save_inbox_note(tx, self._tenant, asked))

    def _tell(self, error: Exception) -> None:
        if not self._told:
            log.error("the inbox cannot be looked through: %s", error)
            self._told = True


def _answered(known: InboxNote | None, stat: Stat, stats: dict[str, Stat]) -> bool:
    path = (
        known.answer_path
        if known is not None and known.answer_path is not None
        else inbox_notes.build_answer_path(stat.path)
    )
    return path in stats
