"""What the dashboard reads, from rows alone: it needs no gateway and nothing that lies in another process's memory.

Fails closed with one kind of error: what cannot be read is a 500 (second contract, "Dashboard service"), except in
the governance snapshot, which says by its flags what is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec

from stentor.core import runlog_queries
from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import CorruptRecord, InvalidRequest, NotFound, StentorError
from stentor.domains.activity import service as activity_store
from stentor.domains.activity.model import MAX_EVENTS, TaskEvents
from stentor.domains.learning import store as learning_store
from stentor.domains.learning.model import SentinelAlert, Weight
from stentor.domains.registry import queries as registry_queries
from stentor.domains.registry import store as registry_store
from stentor.domains.registry.model import Agent
from stentor.domains.reports.model import VaultReport
from stentor.domains.reports.service import ReportService
from stentor.domains.tasknotes import store as note_store
from stentor.domains.tasknotes.model import TaskNoteRecord
from stentor.domains.tasks.model import MAX_ID_LENGTH
from stentor.domains.trust import store as trust_store
from stentor_vault.notes.model import Vault

T = TypeVar("T")
MAX_SCANNED_EVENTS = 20_000
"""Newest events among which the last routing decision is searched."""
log = logging.getLogger(__name__)


class TaskWithEvents(msgspec.Struct, frozen=True):
    record: TaskNoteRecord | None
    events: TaskEvents


class ScoredAgent(msgspec.Struct, frozen=True):
    """An agent with its trust score as of now; None when nothing has set one."""

    agent: Agent
    trust: float | None


class GovernanceSnapshot(msgspec.Struct, frozen=True):
    """All agents and weights of the tenant; a flag is false when that store could not be read as a whole."""

    agents: list[ScoredAgent]
    weights: list[Weight]
    has_all_agents: bool
    has_all_weights: bool
    has_all_trust_scores: bool


class DashboardStore:
    """Of one tenant. `notes` is the vault that the tasks are mirrored in, None when they are not; `threshold` is the
    sentinel's.
    """

    def __init__(
        self, db: Database, clock: Clock, tenant: str, notes: Vault | None, reports: ReportService, threshold: float
    ) -> None:
        self._db = db
        self._clock = clock
        self._notes = notes
        self._reports = reports
        self.tenant = tenant
        self.sentinel_threshold = threshold

    @property
    def has_task_notes(self) -> bool:
        return self._notes is not None

    async def get_task(self, task_id: str) -> TaskNoteRecord:
        """Raises NotFound, and a 500 when the rows or the vault cannot be read."""
        _require_valid_task_id(task_id)
        if self._notes is not None:
            try:
                await self._notes.list_folder()
            except Exception as error:
                raise _unreadable("The vault", error) from error
        found = await self.find_task(task_id)
        if found is None:
            raise NotFound("No task has this id.")
        return found

    async def find_task(self, task_id: str) -> TaskNoteRecord | None:
        found = await self._read("The task", lambda tx: note_store.get_records(tx, self.tenant, [task_id]))
        return next(iter(found), None)

    async def get_history(self, task_id: str, limit: int = MAX_EVENTS, after: str = "") -> TaskWithEvents:
        """A task with a page of its events. Raises NotFound when neither a task nor an event has the id."""
        _require_valid_task_id(task_id)

        def read(tx: Tx) -> TaskWithEvents:
            events = activity_store.read_events(tx, self.tenant, task_id, limit, after)
            records = note_store.get_records(tx, self.tenant, [task_id])
            return TaskWithEvents(next(iter(records), None), events)

        found = await self._read("The task or its run log", read)
        if found.record is None and not found.events.first:
            raise NotFound("No task has this id.")
        return found

    async def list_reports(self, task_id: str | None = None) -> list[VaultReport]:
        """Of a task, or the newest of all. Raises ReportsUnreadable."""
        return await (self._reports.list_latest() if task_id is None else self._reports.list_for_task(task_id))

    async def get_governance_snapshot(self) -> GovernanceSnapshot:
        """Never fails: what cannot be read is missing, and its flag says so."""
        agents, registry = await self._agents()
        scores = await self._whole("The trust scores", lambda tx: trust_store.list_entities(tx, self.tenant))
        weights = await self._whole(
            "The Hebbian weights", lambda tx: learning_store.list_tenant_weights(tx, self.tenant)
        )
        if weights is None and not agents:
            # Which weights are the tenant's is told by the agents, and without them by the history.
            weights = await self._whole(
                "The Hebbian weights", lambda tx: learning_store.list_weights_learned_in(tx, self.tenant)
            )
        now = self._clock.now()
        known = {entity.entity_id: entity.score_at(now) for entity in scores or ()}
        standing = [ScoredAgent(agent, known.get(agent.agent_id)) for agent in agents]
        return GovernanceSnapshot(standing, weights or [], registry, weights is not None, scores is not None)

    async def _whole(self, what: str, fn: Callable[[Tx], T]) -> T | None:
        """None for a store that cannot be read; the log says why."""
        try:
            return await self._db.read(fn)
        except Exception:
            log.exception("%s cannot be read", what.lower())
            return None

    async def _agents(self) -> tuple[list[Agent], bool]:
        found = await self._whole("The agent registry", lambda tx: registry_store.list_agents(tx, self.tenant))
        if found is None:
            return [], False
        good, bad = found
        for problem in bad:
            log.error("%s", problem.message)
        return good, not bad

    async def get_agent(self, agent_id: str) -> tuple[ScoredAgent, list[Weight]]:
        """Raises NotFound."""
        return await self._read("The agent", lambda tx: read_scored_agent(tx, self.tenant, agent_id, self._clock.now()))

    async def resolve_agent_id(self, agent: str) -> str:
        """The id of an agent that was named by its id or its name. Raises InvalidRequest."""

        def read(tx: Tx) -> list[str]:
            found = registry_store.find(tx, self.tenant, agent.lower())
            return [found.agent_id] if found else registry_queries.list_ids_by_name(tx, self.tenant, agent)

        found = await self._read("The agent registry", read)
        if len(found) == 1:
            return found[0]
        reason = "several agents have this name; give an id" if found else "no agent has this id or name"
        raise InvalidRequest(f"agent: {reason}.", {"fields": {"agent": reason}})

    async def get_sentinel_weights(self) -> tuple[list[Weight], dict[str, str]]:
        """All records that the sentinel watches, and the names of the agents."""

        def read(tx: Tx) -> tuple[list[Weight], dict[str, str]]:
            return learning_store.list_tenant_weights(tx, self.tenant), self._names(tx)

        return await self._read("The Hebbian weights", read)

    async def list_alerts(self, *, open_only: bool, limit: int) -> tuple[list[SentinelAlert], dict[str, str]]:
        def read(tx: Tx) -> tuple[list[SentinelAlert], dict[str, str]]:
            return learning_store.list_tenant_alerts(tx, self.tenant, open_only=open_only, limit=limit), self._names(tx)

        return await self._read("The sentinel's alerts", read)

    def _names(self, tx: Tx) -> dict[str, str]:
        return {agent.agent_id: agent.name for agent in registry_store.list_agents(tx, self.tenant)[0]}

    async def get_last_decision(self) -> LastRoutingDecision | None:
        return await self._read("The run log", lambda tx: read_last_decision(tx, self.tenant))

    async def _read(self, what: str, fn: Callable[[Tx], T]) -> T:
        try:
            return await self._db.read(fn)
        except (CorruptRecord, NotFound):
            raise
        except Exception as error:
            raise _unreadable(what, error) from error


def read_scored_agent(tx: Tx, tenant: str, agent_id: str, now: int) -> tuple[ScoredAgent, list[Weight]]:
    """An agent with its trust as of now, and its weights. Raises NotFound."""
    agent = registry_store.find(tx, tenant, agent_id) if _is_valid_id(agent_id) else None
    if agent is None:
        raise NotFound("No agent has this id.")
    entity = trust_store.find(tx, tenant, agent_id)
    score = None if entity is None else entity.score_at(now)
    return ScoredAgent(agent, score), learning_store.list_agent_weights(tx, agent_id)


def _require_valid_task_id(task_id: str) -> None:
    """Raises NotFound for what no task can be called; the id is compared, and never part of a path."""
    if not _is_valid_id(task_id):
        raise NotFound("No task has this id.")


def _is_valid_id(text: str) -> bool:
    return (
        0 < len(text) <= MAX_ID_LENGTH and "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
    )


def _unreadable(what: str, error: Exception) -> StentorError:
    log.error("%s cannot be read: %s", what.lower(), error)
    return StentorError(f"{what} cannot be read. The log of the dashboard service says why.")


class LastRoutingDecision(msgspec.Struct, frozen=True):
    """The settings of routing as its last decision recorded them; the time in microseconds."""

    at: int
    alpha: float
    beta: float
    trust_floor: float
    trust_available: bool


def read_last_decision(tx: Tx, tenant: str) -> LastRoutingDecision | None:
    """Return the settings of the last decision; None if there was none lately. Raises CorruptRecord."""
    event = runlog_queries.find_latest_event(tx, tenant, "routing_decision", MAX_SCANNED_EVENTS)
    if event is None:
        return None
    try:
        return msgspec.convert({"at": event.happened_at, **event.metadata["routing"]}, LastRoutingDecision)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise CorruptRecord("The last routing decision in the run log is malformed.") from error
