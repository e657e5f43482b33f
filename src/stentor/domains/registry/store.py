"""SQL of agents and violations, and their metrics. A malformed row raises RegistryRecordError.

Lists of agents for pages are in `queries.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import msgspec
from prometheus_client.core import Metric

from stentor.core import ids, jsontext
from stentor.core.db import Sql, Tx
from stentor.core.errors import RegistryRecordError
from stentor.core.metrics import labeled_counter_family, labeled_gauge_family
from stentor.domains.registry.agent_cache import AgentCache
from stentor.domains.registry.model import Agent, AgentStatus, Runtime, SandboxWhitelist, Violation, ViolationType

_COLUMNS = (
    "agent_id, tenant, name, capabilities, alignment_score, accuracy_score, efficiency_score, trust_tier, "
    "status, runtime, sandbox_whitelist, key_name, violation_count, status_reason, created_at, updated_at, "
    "archived_at, archived_from"
)
_FIELDS = tuple(_COLUMNS.split(", "))
_ONE = Sql(f"select {_COLUMNS} from agents where tenant = :tenant and agent_id = :agent_id")
# An array as one parameter, which SQLite does not have: there no other process changes agents.
_VERSIONS = Sql("select agent_id, updated_at from agents where agent_id = any(:agent_ids)")
_CHANGED = Sql(f"select {_COLUMNS} from agents where updated_at >= :since")
_OF_TENANT = Sql(f"select {_COLUMNS} from agents where tenant = :tenant order by created_at, agent_id")
_INSERT = Sql.insert("agents", _FIELDS)
_UPDATE = Sql(
    """update agents set capabilities = :capabilities, runtime = :runtime, sandbox_whitelist = :sandbox_whitelist,
        alignment_score = :alignment_score, accuracy_score = :accuracy_score,
        efficiency_score = :efficiency_score, trust_tier = :trust_tier, status = :status, key_name = :key_name,
        violation_count = :violation_count, status_reason = :status_reason, updated_at = :updated_at,
        archived_at = :archived_at, archived_from = :archived_from
    where tenant = :tenant and agent_id = :agent_id"""
)
_LAST_TASK = Sql("select max(created_at) from tasks where tenant = :tenant and assigned_agent = :agent_id")
_FIRST_TASK = Sql("select min(created_at) from tasks where tenant = :tenant and assigned_agent = :agent_id")
_VIOLATION = "select violation_id, type, details, happened_at, cleared_at from violations where agent_id = :agent_id"
_VIOLATIONS = Sql(f"{_VIOLATION} and cleared_at is null order by violation_id")
_ALL_VIOLATIONS = Sql(f"{_VIOLATION} order by violation_id")
_RECORD = Sql(
    """insert into violations (violation_id, agent_id, type, details, happened_at)
    values (:violation_id, :agent_id, :type, :details, :now)"""
)
_CLEAR = Sql("update violations set cleared_at = :now where agent_id = :agent_id and cleared_at is null")
_RECORD_DEPARTURE = Sql(
    """insert into departed_agents (tenant, agent_id, left_at) values (:tenant, :agent_id, :now)
    on conflict (tenant, agent_id) do update set left_at = excluded.left_at"""
)
_FORGET_DEPARTURE = Sql("delete from departed_agents where tenant = :tenant and agent_id = :agent_id")
_LIST_DEPARTURES = Sql("select agent_id, left_at from departed_agents")
_VIOLATION_COUNTS = Sql("select type, count(*) from violations group by type")

_capabilities = msgspec.json.Decoder(tuple[str, ...])
_runtime = msgspec.json.Decoder(Runtime)
_whitelist = msgspec.json.Decoder(SandboxWhitelist)
_STATUSES: tuple[str, ...] = get_args(AgentStatus)
_VIOLATION_TYPES: tuple[str, ...] = get_args(ViolationType)


def find(tx: Tx, tenant: str, agent_id: str) -> Agent | None:
    row = tx.row(_ONE, tenant=tenant, agent_id=agent_id)
    return _agent(row) if row else None


def changed_since(tx: Tx, since: int) -> tuple[list[Agent], list[RegistryRecordError]]:
    """Return the agents that changed since a time in microseconds, and an error for each malformed record."""
    return _decode_rows(tx.rows(_CHANGED, since=since))


def read_versions(tx: Tx, agent_ids: list[str]) -> dict[str, int]:
    """Return the versions of agents, their `updated_at`, by id; PostgreSQL only."""
    return {agent_id: int(updated_at) for agent_id, updated_at in tx.rows_once(_VERSIONS, agent_ids=agent_ids)}


def record_departure(tx: Tx, tenant: str, agent_id: str) -> None:
    """Record that the last worker of an agent left, for processes that start from now on."""
    tx.run(_RECORD_DEPARTURE, tenant=tenant, agent_id=agent_id, now=tx.now)


def forget_departure(tx: Tx, tenant: str, agent_id: str) -> None:
    tx.run(_FORGET_DEPARTURE, tenant=tenant, agent_id=agent_id)


def list_departures(tx: Tx) -> dict[str, int]:
    """Return when the last worker of each agent without one left, in microseconds, by the agent's id."""
    return {agent_id: int(left_at) for agent_id, left_at in tx.rows(_LIST_DEPARTURES)}


def list_agents(tx: Tx, tenant: str) -> tuple[list[Agent], list[RegistryRecordError]]:
    """Return all agents of a tenant, oldest first, and an error for each malformed record."""
    return _decode_rows(tx.rows(_OF_TENANT, tenant=tenant))


def _decode_rows(rows: list[tuple[Any, ...]]) -> tuple[list[Agent], list[RegistryRecordError]]:
    agents: list[Agent] = []
    errors: list[RegistryRecordError] = []
    for row in rows:
        try:
            agents.append(_agent(row))
        except RegistryRecordError as error:
            errors.append(error)
    return agents, errors


def insert(tx: Tx, agent: Agent) -> None:
    tx.run(_INSERT, **_params(agent))


def update(tx: Tx, agent: Agent) -> None:
    """Write all fields but `name` and `created_at`, which never change."""
    params = _params(agent)
    for fixed in ("name", "created_at"):
        del params[fixed]
    tx.run(_UPDATE, **params)


def find_last_task_time(tx: Tx, tenant: str, agent_id: str) -> int | None:
    row = tx.row(_LAST_TASK, tenant=tenant, agent_id=agent_id)
    return row[0] if row else None


def find_first_task_time(tx: Tx, tenant: str, agent_id: str) -> int | None:
    row = tx.row(_FIRST_TASK, tenant=tenant, agent_id=agent_id)
    return row[0] if row else None


def list_violations(tx: Tx, agent_id: str, *, cleared: bool = False) -> list[Violation]:
    """Return the violations that count now, oldest first; with `cleared` also those that were cleared."""
    rows = tx.rows(_ALL_VIOLATIONS if cleared else _VIOLATIONS, agent_id=agent_id)
    return [Violation(*row) for row in rows]


def record_violation(tx: Tx, agent_id: str, kind: ViolationType, details: str) -> Violation:
    violation = Violation(ids.new_id(), kind, details, tx.now, None)
    tx.run(
        _RECORD,
        violation_id=violation.violation_id,
        agent_id=agent_id,
        type=kind,
        details=details,
        now=tx.now,
    )
    return violation


def clear_violations(tx: Tx, agent_id: str) -> None:
    tx.run(_CLEAR, agent_id=agent_id, now=tx.now)


def _agent(row: tuple[Any, ...]) -> Agent:
    values = dict(zip(_FIELDS, row, strict=True))
    try:
        values["capabilities"] = _capabilities.decode(values["capabilities"])
        values["runtime"] = _runtime.decode(values["runtime"])
        values["sandbox_whitelist"] = _whitelist.decode(values["sandbox_whitelist"])
        return msgspec.convert(values, Agent)
    except (msgspec.MsgspecError, TypeError, UnicodeError) as error:
        raise RegistryRecordError(
            f"The stored record of agent {values['agent_id']} is malformed: {error}.",
            str(values["agent_id"]),
            str(values["tenant"]),
        ) from error


def _params(agent: Agent) -> dict[str, Any]:
    params = {name: getattr(agent, name) for name in _FIELDS}
    for structured in ("capabilities", "runtime", "sandbox_whitelist"):
        params[structured] = jsontext.dump(params[structured])
    return params


def agent_metrics(agents: AgentCache) -> Iterable[Metric]:
    """Return the gauges of agents; reads the cache, not the database."""
    counts = {status: float(agents.status_counts[status]) for status in _STATUSES}
    yield labeled_gauge_family("stentor_agents", "Agents that are not archived, by status.", "status", counts)


def violation_metrics(tx: Tx) -> Iterable[Metric]:
    # Every type from 0 on: a series that appears with its first violation has no rate.
    counts = {(kind,): 0.0 for kind in _VIOLATION_TYPES}
    counts |= {(str(kind),): float(count) for kind, count in tx.rows(_VIOLATION_COUNTS)}
    yield labeled_counter_family(
        "stentor_violations", "Violations of agents ever recorded, by type.", ("type",), counts
    )
