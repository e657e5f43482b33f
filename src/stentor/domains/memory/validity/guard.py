"""What a write may do to the marks of a note, and the events of the marks that it changes.

Fails closed for agents: the marks of others stay, and a mark that would take notes out of searches which the agent may
not write is refused. People may change everything that they may write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stentor.core.clock import Clock, format_iso
from stentor.core.errors import Forbidden
from stentor.core.runlog import EventDraft
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.model import MemoryCaller
from stentor.domains.memory.threads import in_thread_if_long
from stentor.domains.memory.validity import marks
from stentor.domains.memory.validity.frontmatter_keys import TASK_SOURCE
from stentor.domains.memory.validity.marks import MarkChange, MarkedNote
from stentor_vault.text import documents

INLINE_BYTES = 16_000
"""Up to this size both states of a note are parsed on the event loop, above in a thread."""


class MarkGuard:
    """Checks the writes to one vault.

    `is_answer` returns whether a path is an answer that the service wrote; answers are excluded together with the notes
    that they cite.
    """

    def __init__(self, index: SearchIndex, clock: Clock, is_answer: Callable[[str], bool]) -> None:
        self._index = index
        self._clock = clock
        self._is_answer = is_answer

    async def admit(self, caller: MemoryCaller, path: str, before: bytes | None, after: bytes | None) -> bytes | None:
        """Return the bytes to write: for an agent, with its name on its marks and its task among the sources.

        Raises Forbidden.
        """
        if caller.principal.is_person or before == after:
            return after
        agent = caller.author
        if after is not None and caller.task_id:
            after = marks.add_source(path, after, f"{TASK_SOURCE}{caller.task_id}")
        old, new = await read_both(path, before, after)
        marks.require_own_marks(path, old, new, agent)
        await self._require_sources(path, old, new, agent, is_deletion=after is None)
        if after is None:
            return None
        if before is None:
            await self._require_no_successor(path, agent)
        set_marks = [change for change in marks.list_changes(old, new) if change.is_set]
        await self._require_reach(caller, path, old, new, set_marks)
        return self._stamp(path, after, set_marks, agent) if set_marks else after

    async def admit_copy(
        self, caller: MemoryCaller, path: str, current: bytes | None, copy_path: str, losing: bytes
    ) -> bytes:
        """Return the bytes of a conflict copy of a note, admitted as those of any new note. Raises Forbidden."""
        admitted = await self.admit(caller, copy_path, None, losing)
        assert admitted is not None  # it is not a deletion
        note, _ = await read_both(path, current, None)
        if note.marks or await self._index.find_exclusion(path) is not None:
            # The text of an invalid note must not come back through its copy.
            return marks.add_source(copy_path, admitted, f"[[{path}]]")
        return admitted

    async def _require_sources(
        self, path: str, old: MarkedNote, new: MarkedNote, agent: str, *, is_deletion: bool
    ) -> None:
        """Refuse to remove sources that exclude a note from searches: it would reappear without a restore."""
        if not marks.lost_sources(old, new):
            return
        exclusion = await self._index.find_exclusion(path)
        if exclusion is not None and exclusion.chain and exclusion.cause.by != agent:
            what = "delete it" if is_deletion else "remove its sources"
            # Without the name of the cause, which may be a note that the agent cannot read.
            raise Forbidden(f"{path!r} was derived from something that is invalid; an agent cannot {what}.")

    async def _require_no_successor(self, path: str, agent: str) -> None:
        """Refuse a new note that would become the source of an invalid one: a link resolves to the nearest name."""
        for other in await self._index.list_derived(path):
            exclusion = await self._index.find_exclusion(other)
            if exclusion is not None and exclusion.cause.by != agent:
                raise Forbidden(f"Invalid notes were derived from a note named {path!r}; choose another name.")

    async def _require_reach(
        self, caller: MemoryCaller, path: str, old: MarkedNote, new: MarkedNote, changes: Sequence[MarkChange]
    ) -> None:
        """Refuse marks and invalid sources that would exclude notes which the agent may not write."""
        anchors = [name for change in changes for name in new.anchors.get(change.anchor, ())]
        added = [source for source in new.validity.sources if source not in old.validity.sources]
        if any(not change.anchor for change in changes) or (
            added and await self._index.has_invalid_source(path, added)
        ):
            derived = await self._index.list_derived(path)
        else:
            derived = await self._index.list_derived(path, anchors) if anchors else []
        foreign = sum(not self._is_answer(other) and not caller.may_write(other) for other in derived)
        if foreign:
            raise Forbidden(
                f"This would hide {foreign} note{'' if foreign == 1 else 's'}, which this caller may not write, from "
                f"searches. Ask a person to mark {path!r}."
            )

    def _stamp(self, path: str, after: bytes, changes: Sequence[MarkChange], agent: str) -> bytes:
        document = documents.parse_document(path, after)
        assert document is not None  # it has marks
        values = marks.stamp(document, changes, agent, format_iso(self._clock.now()))
        return documents.edit_document(after, None, values, replace_frontmatter=False)


async def read_both(path: str, before: bytes | None, after: bytes | None) -> tuple[MarkedNote, MarkedNote]:
    """Parse the marks of both states; in a thread above INLINE_BYTES."""
    return await in_thread_if_long(
        len(before or b"") + len(after or b""),
        INLINE_BYTES,
        lambda: (marks.read_marks(path, before), marks.read_marks(path, after)),
    )


async def mark_events(
    caller: MemoryCaller, path: str, before: bytes | None, after: bytes | None, reason: str | None
) -> list[EventDraft]:
    """Return the events of the marks that a write changes; `reason` is why one is removed."""
    if b"invalid" not in (before or b"") and b"invalid" not in (after or b""):
        return []
    changes = marks.list_changes(*await read_both(path, before, after))
    return [_event(caller, path, change, reason) for change in changes if after is not None or not change.is_set]


def _event(caller: MemoryCaller, path: str, change: MarkChange, reason: str | None) -> EventDraft:
    kind, target = ("claim", path + change.anchor) if change.anchor else ("note", path)
    return target_event(caller, kind, target, change.mark.reason if change.is_set else reason, is_invalid=change.is_set)


def target_event(caller: MemoryCaller, kind: str, target: str, reason: str | None, *, is_invalid: bool) -> EventDraft:
    """Return the event of an invalidation or a restore."""
    meta = {"kind": kind, "target": target, "reason": reason, "by": caller.principal.name}
    if is_invalid:
        message = f"The {kind} {target} was marked invalid."
        return EventDraft("memory_invalidated", "memory", message, meta, agent_id=caller.agent_id)
    message = f"The {kind} {target} is no longer marked invalid."
    return EventDraft("memory_restored", "memory", message, meta, agent_id=caller.agent_id)
