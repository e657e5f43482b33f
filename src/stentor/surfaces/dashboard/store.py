"""Reads of the dashboard's JSON API, only from the database and the vault: they work without a gateway process.

Fails closed: unreadable data is a 500 (second contract, "Dashboard service"), except in the governance snapshot, whose
flags say what is missing. Pages run their own queries with `site.page.Page.read`.
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
from stentor.domains.reports.service import ReportService, VaultReport
from stentor.domains.tasknotes import store as note_store
from stentor.domains.tasknotes.model import TaskNoteRecord
from stentor.domains.tasks.access import missing_task_of_tenant
from stentor.domains.tasks.model import MAX_ID_LENGTH
from stentor.domains.trust import store as trust_store
from stentor_vault.notes.model import Vault

T = TypeVar("T")
MAX_SCANNED_EVENTS = 20_000
"""Number of newest events searched for the last routing decision."""
log = logging.getLogger(__name__)


class TaskWithEvents(msgspec.Struct, frozen=True):
    """A page of a task's events; `record` is None after the task was deleted."""

    record: TaskNoteRecord | None
    events: TaskEvents


class ScoredAgent(msgspec.Struct, frozen=True):
    """An agent with its current trust score, None while unscored."""

    agent: Agent
    trust: float | None


class GovernanceSnapshot(msgspec.Struct, frozen=True):
    """All agents and weights of the tenant; a flag is false when that store could not be read completely."""

    agents: list[ScoredAgent]
    weights: list[Weight]
    has_all_agents: bool
    has_all_weights: bool
    has_all_trust_scores: bool


class LastRoutingDecision(msgspec.Struct, frozen=True):
    """The routing settings as the last decision recorded them; `at` is in microseconds."""

    at: int
    alpha: float
    beta: float
    trust_floor: float
    trust_available: bool


class DashboardStore:
    """Reads the data of one tenant. `notes` is the vault that mirrors the tasks, None without a mirror; `threshold` is
    the sentinel's.
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
        """Return a task. Raises NotFound, and a 500 when the database or the vault cannot be read."""
        _require_valid_task_id(task_id)
        if self._notes is not None:
            # The record comes from the database. This only fails while the vault is unreadable.
            try:
                # The contract asks for a 500 while the vault cannot be read, although the record does not need it.
                await self._notes.list_folder()
            except Exception as error:
                raise _unreadable("The vault", error) from error
        task = await self.find_task(task_id)
        if task is None:
            raise await self._missing_task(task_id)
        return task

    async def find_task(self, task_id: str) -> TaskNoteRecord | None:
        records = await self._read("The task", lambda tx: note_store.get_records(tx, self.tenant, [task_id]))
        return next(iter(records), None)

    async def get_history(self, task_id: str, limit: int = MAX_EVENTS, after: str = "") -> TaskWithEvents:
        """Return a task with a page of its events. Raises NotFound when neither a task nor an event has the id."""
        _require_valid_task_id(task_id)

        def read(tx: Tx) -> TaskWithEvents:
            events = activity_store.read_events(tx, self.tenant, task_id, limit, after)
            records = note_store.get_records(tx, self.tenant, [task_id])
            return TaskWithEvents(next(iter(records), None), events)

        history = await self._read("The task or its run log", read)
        if history.record is None and not history.events.first:
            raise await self._missing_task(task_id)
        return history

    async def _missing_task(self, task_id: str) -> NotFound:
        return await self._read("The task", lambda tx: missing_task_of_tenant(tx, self.tenant, task_id))

    async def list_reports(self, task_id: str | None = None) -> list[VaultReport]:
        """List the reports of a task, or the newest of all tasks. Raises ReportsUnreadable."""
        return await (self._reports.list_latest() if task_id is None else self._reports.list_for_task(task_id))

    async def get_governance_snapshot(self) -> GovernanceSnapshot:
        """Read the agents but archived ones, trust scores and weights.

        Never fails: unreadable data is missing and its flag is false.
        """
        agents, has_all_agents = await self._agents()
        scores = await self._read_or_none("The trust scores", lambda tx: trust_store.list_entities(tx, self.tenant))
        weights = await self._read_or_none(
            "The Hebbian weights", lambda tx: learning_store.list_tenant_weights(tx, self.tenant)
        )
        if weights is None and not agents:
            # Weights belong to a tenant through their agents. Without agents, the learning history names the weights.
            weights = await self._read_or_none(
                "The Hebbian weights", lambda tx: learning_store.list_weights_learned_in(tx, self.tenant)
            )
        archived = {agent.agent_id for agent in agents if agent.is_archived}
        agents = [agent for agent in agents if not agent.is_archived]
        weights = None if weights is None else [weight for weight in weights if weight.agent_id not in archived]
        now = self._clock.now()
        score_by_agent = {entity.entity_id: entity.score_at(now) for entity in scores or ()}
        scored_agents = [ScoredAgent(agent, score_by_agent.get(agent.agent_id)) for agent in agents]
        return GovernanceSnapshot(scored_agents, weights or [], has_all_agents, weights is not None, scores is not None)

    async def _read_or_none(self, what: str, fn: Callable[[Tx], T]) -> T | None:
        """Return None for an unreadable store, and log the reason."""
        try:
            return await self._db.read(fn)
        except Exception as error:
            log.exception("store: read failed what=%s error=%s", what, error)
            return None

    async def _agents(self) -> tuple[list[Agent], bool]:
        """Return the readable agents, and whether these are all."""
        result = await self._read_or_none("The agent registry", lambda tx: registry_store.list_agents(tx, self.tenant))
        if result is None:
            return [], False
        # One unreadable record must not hide the other agents.
        agents, problems = result
        for problem in problems:
            log.error("store: agent unreadable error=%s", problem.message)
        return agents, not problems

    async def get_agent(self, agent_id: str) -> tuple[ScoredAgent, list[Weight]]:
        """Return an agent and its weights. Raises NotFound."""
        return await self._read("The agent", lambda tx: read_scored_agent(tx, self.tenant, agent_id, self._clock.now()))

    async def resolve_agent_id(self, agent: str) -> str:
        """Return the id of an agent given by its id or its name. Raises InvalidRequest."""

        def read(tx: Tx) -> list[str]:
            # Ids first: an agent may have another one's id as its name.
            agent_by_id = registry_store.find(tx, self.tenant, agent.lower())
            return [agent_by_id.agent_id] if agent_by_id else registry_queries.list_ids_by_name(tx, self.tenant, agent)

        agent_ids = await self._read("The agent registry", read)
        if len(agent_ids) == 1:
            return agent_ids[0]
        reason = "several agents have this name; use an agent ID" if agent_ids else "no agent has this ID or name"
        raise InvalidRequest.of_field("agent", reason)

    async def get_sentinel_weights(self) -> tuple[list[Weight], dict[str, str]]:
        """Return the weights that the sentinel watches, not of archived agents, and the agents' names by id."""

        def read(tx: Tx) -> tuple[list[Weight], dict[str, str]]:
            agents = registry_store.list_agents(tx, self.tenant)[0]
            archived = {agent.agent_id for agent in agents if agent.is_archived}
            weights = learning_store.list_tenant_weights(tx, self.tenant)
            names = {agent.agent_id: agent.name for agent in agents}
            return [weight for weight in weights if weight.agent_id not in archived], names

        return await self._read("The Hebbian weights", read)

    async def list_alerts(self, *, open_only: bool, limit: int) -> tuple[list[SentinelAlert], dict[str, str]]:
        """Return the sentinel's alerts, newest first, and the agents' names by id."""

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
            raise  # errors of their own, with a message for the caller
        except Exception as error:
            raise _unreadable(what, error) from error


def read_scored_agent(tx: Tx, tenant: str, agent_id: str, now: int) -> tuple[ScoredAgent, list[Weight]]:
    """Return an agent with its current trust, and its weights. Raises NotFound."""
    agent = registry_store.find(tx, tenant, agent_id) if _is_valid_id(agent_id) else None
    if agent is None:
        raise NotFound("No agent has this id.")
    entity = trust_store.find(tx, tenant, agent_id)
    score = None if entity is None else entity.score_at(now)
    return ScoredAgent(agent, score), learning_store.list_agent_weights(tx, agent_id)


def _require_valid_task_id(task_id: str) -> None:
    """Raise NotFound for a string that cannot be a task id, before it reaches the database or the vault."""
    if not _is_valid_id(task_id):
        raise NotFound("No task has this id.")


def _is_valid_id(text: str) -> bool:
    # PostgreSQL accepts no NUL in a text, and an unpaired surrogate cannot be encoded as UTF-8.
    return (
        0 < len(text) <= MAX_ID_LENGTH and "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
    )


def _unreadable(what: str, error: Exception) -> StentorError:
    log.error("store: read failed what=%s error=%s", what, error)
    return StentorError(f"{what} cannot be read. See the dashboard log for details.")


def read_last_decision(tx: Tx, tenant: str) -> LastRoutingDecision | None:
    """Return the settings of the last decision; None if no recent event is one. Raises CorruptRecord."""
    event = runlog_queries.find_latest_event(tx, tenant, "routing_decision", MAX_SCANNED_EVENTS)
    if event is None:
        return None
    try:
        return msgspec.convert({"at": event.happened_at, **event.metadata["routing"]}, LastRoutingDecision)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise CorruptRecord("The last routing decision in the run log is malformed.") from error
