"""Reads of tasks on behalf of a caller: one task with what it waits for, its input, and lists.

`service` changes tasks; `activity` reads their events.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.auth.principal import Principal
from stentor.core import runlog_queries
from stentor.core.db import Database, Tx
from stentor.core.errors import CorruptRecord
from stentor.domains.atp.text_format import content_for_agent
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.tasks import queries
from stentor.domains.tasks.access import require_visible_task
from stentor.domains.tasks.model import Task
from stentor.domains.tasks.queues import limit_store, subtask_store
from stentor.domains.tasks.reading import list_queries, own_list_queries, visibility_queries
from stentor.domains.tasks.reading.list_model import TaskFilter, TaskPage
from stentor.domains.tasks.reading.progress import (
    MAX_WAITS,
    Notice,
    TaskState,
    TaskWait,
    WaitReader,
    describe_cancel,
    describe_inactive,
    describe_limit,
    describe_lost_attempt,
    describe_offline,
    describe_silence,
    describe_unused_session,
)
from stentor.domains.tasks.search.service import TaskSearch


class TaskReader:
    """Reads the tasks that a caller may see."""

    def __init__(
        self, db: Database, agents: AgentCache, routing: RoutingEngine, search: TaskSearch, read_waits: WaitReader
    ) -> None:
        self._db = db
        self._agents = agents
        self._routing = routing
        self._search = search
        self._read_waits = read_waits

    async def get(self, principal: Principal, task_id: str) -> Task:
        """Return a task. Raises NotFound, also for a task that the caller may not read."""
        return await self._db.read(lambda tx: require_visible_task(tx, principal, task_id))

    async def read_input(self, principal: Principal, task_id: str) -> Any:
        """Return the input of a task as its agent gets it. Raises NotFound."""

        def read(tx: Tx) -> Any:
            require_visible_task(tx, principal, task_id)
            return content_for_agent(queries.read_whole_input(tx, principal.tenant, task_id))

        return await self._db.read(read)

    async def get_state(self, principal: Principal, task_id: str) -> TaskState:
        """Return a task, why it is still queued, seems to be lost, or still cancels subtasks, and what it waits for.

        Raises NotFound.
        """

        def read(tx: Tx) -> TaskState:
            task = require_visible_task(tx, principal, task_id)
            if task.status == "waiting":
                return TaskState(task, None, self._read_waits(tx, task))
            if task.status == "cancelled":
                return TaskState(task, describe_cancel(subtask_store.count_left(tx, task.tenant, task_id)), [])
            limit = task.metadata.limit if task.status == "queued" else None
            if limit is None:
                return TaskState(task, describe_silence(task, tx.now), [])
            full = describe_limit(limit, limit_store.count_used(tx, task.tenant, limit))
            return TaskState(task, full, [] if full is None else [TaskWait("limit", full.text.rstrip("."))])

        state = await self._db.read(read)
        if state.task.status == "pending_approval":
            state = msgspec.structs.replace(state, waits_for=[TaskWait("approval", "Waits for approval")])
        if state.notice is None and (notice := self.describe_wait_for_agent(state.task)) is not None:
            wait = TaskWait("agent", f"Waits for its agent: {notice.text}")
            waits = [*state.waits_for[: MAX_WAITS - 1], wait]
            return msgspec.structs.replace(state, notice=notice, waits_for=waits)
        if state.notice is None and state.task.status == "queued" and state.task.epoch:
            return msgspec.structs.replace(state, notice=await self._describe_lost_attempt(state.task))
        return state if state.notice else msgspec.structs.replace(state, notice=self._unused_session(state.task))

    def _unused_session(self, task: Task) -> Notice | None:
        name = self._agents.find_name(task.tenant, task.assigned_agent)
        return describe_unused_session(task.runtime_kind, name, task.metadata.session)

    async def _describe_lost_attempt(self, task: Task) -> Notice | None:
        """Return why a task is queued again if its latest attempt was lost, None if it is queued for another reason."""
        try:
            event = await self._db.read(lambda tx: runlog_queries.find_event(tx, task.tenant, task.head_id))
        except CorruptRecord:
            # Fails open: a damaged run log must not hide the task.
            return None
        return None if event is None else describe_lost_attempt(task, event)

    async def count_open(self, tenant: str, agent_id: str) -> int:
        """Return how many tasks of an agent have not ended."""
        return await self._db.read(lambda tx: queries.count_open(tx, tenant, agent_id))

    def describe_wait_for_agent(self, task: Task) -> Notice | None:
        """Return why a task waits: its agent is not active, offline, or a worker that has not connected yet."""
        if task.status not in ("queued", "waiting", "pending_approval") or task.assigned_agent is None:
            return None
        agent = self._agents.get(task.tenant, task.assigned_agent)
        if agent is None:
            return None
        if agent.status != "active":
            return describe_inactive(agent.name, "archived" if agent.is_archived else agent.status)
        if task.status != "queued":
            return None
        if self._routing.agent_load(agent).is_online and not self._routing.is_unseen(agent):
            return None
        return describe_offline(agent.runtime.kind, agent.name)

    async def list_page(self, principal: Principal, task_filter: TaskFilter, limit: int, offset: int) -> TaskPage:
        """Return a page of the matching tasks that the caller may read, newest first."""
        tenant = principal.tenant
        task_filter = msgspec.structs.replace(task_filter, key=visibility_queries.visibility_key(principal))

        def read(tx: Tx) -> TaskPage:
            # Read one row more than the page holds, to know whether there is a next page.
            if task_filter.ref is not None:
                rows = list_queries.list_by_reference(tx, tenant, task_filter, limit + 1)
                return TaskPage(rows[:limit], len(rows), has_more=False, total_is_exact=len(rows) <= limit)
            if task_filter.parent is not None:
                rows = list_queries.list_subtasks(tx, tenant, task_filter, limit + 1)
                total = list_queries.count_subtasks(tx, tenant, task_filter)
                return TaskPage(rows[:limit], total, len(rows) > limit, total < list_queries.MAX_TOTAL)
            lists = list_queries if task_filter.key is None else own_list_queries
            rows = lists.read_page(tx, tenant, task_filter, limit + 1, offset)
            total, is_exact = lists.count_matching(tx, tenant, task_filter)
            if rows and not is_exact:
                # Only the newest tasks are counted, and the page may have older ones.
                total = max(total, offset + len(rows))
            return TaskPage(rows[:limit], total, len(rows) > limit, is_exact)

        return await self._db.read(read)

    async def search_page(
        self, principal: Principal, task_filter: TaskFilter, text: str, before: int | None, limit: int
    ) -> tuple[TaskPage, int | None]:
        """Return a page of the tasks that contain a text and that the caller may read, and where the next page begins.

        Raises InvalidRequest for a text without words, Conflict if the search is switched off.
        """
        task_filter = msgspec.structs.replace(task_filter, key=visibility_queries.visibility_key(principal))
        return await self._search.list_page(principal.tenant, task_filter, text, before, limit)
