"""The kernel: agents, tasks, run log, learning, trust.

Times are microseconds since the epoch, structures are JSON text, flags are 0 or 1: the subset that
SQLite and PostgreSQL share. The states of a task are CHECK constraints and its transitions a
trigger, so that no statement, ours or an operator's, can make a transition that is not in MOVES.
"""

from alembic import op

revision = "0001"
down_revision = None

STATEMENTS = """
create table agents (
    agent_id text primary key,
    tenant text not null,
    name text not null,
    capabilities text not null,
    alignment_score double precision not null check (alignment_score between 0 and 1),
    accuracy_score double precision not null check (accuracy_score between 0 and 1),
    efficiency_score double precision not null check (efficiency_score between 0 and 1),
    trust_tier text not null check (trust_tier in ('auto', 'monitored', 'human')),
    status text not null check (status in ('active', 'suspended', 'quarantined')),
    runtime text not null,
    sandbox_whitelist text not null,
    key_name text,
    violation_count integer not null check (violation_count >= 0),
    status_reason text,
    created_at bigint not null,
    updated_at bigint not null
);
create index agents_by_tenant on agents (tenant, created_at, agent_id);
create index agents_by_change on agents (updated_at);

create table violations (
    violation_id text primary key,
    agent_id text not null references agents (agent_id),
    type text not null,
    details text not null,
    happened_at bigint not null,
    cleared_at bigint
);
create index violations_by_agent on violations (agent_id, happened_at);

create table rate_buckets (
    agent_id text not null,
    tool text not null,
    tokens double precision not null,
    updated_at bigint not null,
    primary key (agent_id, tool)
);

create table tasks (
    tenant text not null,
    task_id text not null,
    status text not null check (status in ('queued', 'pending_approval', 'executing',
        'completed', 'failed', 'aborted', 'cancelled')),
    type text not null,
    priority integer not null check (priority between 0 and 3),
    assigned_agent text,
    runtime_kind text,
    created_at bigint not null,
    queued_at bigint not null,
    start_time bigint,
    completion_time bigint,
    timeout_seconds integer not null check (timeout_seconds between 1 and 86400),
    epoch integer not null check (epoch >= 0),
    attempt_epoch integer not null,
    lease_until bigint,
    deadline_at bigint,
    outcome_class text check (outcome_class in ('success', 'degraded_success', 'agent_failure',
        'provider_failure', 'timeout', 'cancelled', 'routing_failed')),
    learning_eligible integer,
    learning_pending integer not null default 0,
    performance double precision,
    provenance_id text not null,
    head_id text not null,
    parent_task_id text,
    submitted_by text not null,
    submitted_status text not null,
    estimated_start bigint not null,
    estimated_completion bigint not null,
    body_hash text not null,
    required_capabilities text not null,
    agent_preference text,
    metadata text not null,
    error text,
    input text not null,
    result text,
    primary key (tenant, task_id),
    check (status <> 'executing' or (lease_until is not null and deadline_at is not null and epoch > 0)),
    check ((status in ('completed', 'failed', 'aborted', 'cancelled')) = (completion_time is not null))
);
create index tasks_by_time on tasks (tenant, created_at, task_id);
create index tasks_by_status on tasks (tenant, status, created_at, task_id);
create index tasks_by_agent on tasks (tenant, assigned_agent, created_at, task_id);
create index tasks_by_agent_status on tasks (tenant, assigned_agent, status, created_at, task_id);
create index tasks_waiting on tasks (priority, queued_at) where status = 'queued';
create index tasks_leased on tasks (lease_until) where status = 'executing';
create index tasks_unlearned on tasks (completion_time) where learning_pending = 1;

create table task_counts (
    tenant text not null,
    hour bigint not null, -- -1 counts all hours
    status text not null,
    agent_id text not null,
    n bigint not null,
    primary key (tenant, hour, status, agent_id)
);

create table idempotency_keys (
    tenant text not null,
    key_name text not null,
    route text not null,
    idempotency_key text not null,
    body_hash text not null,
    status_code integer not null,
    answer text not null,
    created_at bigint not null,
    primary key (tenant, key_name, route, idempotency_key)
);
create index idempotency_by_age on idempotency_keys (created_at);

create table events (
    event_id text primary key,
    tenant text not null,
    task_id text,
    agent_id text,
    parent_id text,
    happened_at bigint not null,
    event_type text not null,
    component text not null,
    message text not null,
    duration_ms bigint,
    metadata text not null
);
create index events_by_task on events (tenant, task_id, event_id) where task_id is not null;
create index events_by_agent on events (tenant, agent_id, event_id) where agent_id is not null;

create table hebbian_weights (
    agent_id text not null,
    task_type text not null,
    weight double precision not null check (weight >= 0.01),
    mean_ms double precision not null,
    samples integer not null,
    recent text not null,
    updated_at bigint not null,
    primary key (agent_id, task_type)
);
create index hebbian_weights_by_change on hebbian_weights (updated_at);

create table hebbian_history (
    entry_id text primary key,
    agent_id text not null,
    task_type text not null,
    tenant text not null,
    task_id text not null,
    epoch integer not null,
    delta integer not null check (delta in (-1, 1)),
    result text not null,
    weight_before double precision not null,
    weight_after double precision not null,
    happened_at bigint not null
);
create unique index hebbian_once_per_attempt on hebbian_history (tenant, task_id, epoch);
create index hebbian_history_by_agent on hebbian_history (agent_id, entry_id);

create table hebbian_connections (
    tenant text not null,
    low text not null,
    high text not null,
    agent1 text not null,
    agent2 text not null,
    weight double precision not null check (weight >= 0.01),
    updated_at bigint not null,
    primary key (tenant, low, high),
    check (low < high)
);

create table sentinel_alerts (
    alert_id text primary key,
    agent_id text not null,
    task_type text not null,
    rate double precision not null,
    threshold double precision not null,
    samples integer not null,
    opened_at bigint not null,
    resolved_at bigint
);
create unique index sentinel_one_open_alert on sentinel_alerts (agent_id, task_type)
    where resolved_at is null;

create table trust_scores (
    tenant text not null,
    entity_id text not null,
    entity_type text not null,
    score double precision not null check (score between 0 and 1),
    updated_at bigint not null,
    primary key (tenant, entity_id)
);
create index trust_by_change on trust_scores (updated_at);

create table trust_changes (
    change_id text primary key,
    tenant text not null,
    entity_id text not null,
    kind text not null check (kind in ('set', 'success', 'failure')),
    delta double precision not null,
    score double precision not null,
    cause text,
    happened_at bigint not null
);
create index trust_changes_by_time on trust_changes (tenant, change_id);
create unique index trust_once_per_cause on trust_changes (tenant, entity_id, cause)
    where cause is not null
"""


MOVES = """
    'queued>executing', 'queued>failed', 'queued>cancelled',
    'pending_approval>queued', 'pending_approval>aborted', 'pending_approval>cancelled',
    'executing>completed', 'executing>failed', 'executing>aborted', 'executing>queued', 'executing>cancelled',
    'failed>queued', 'failed>pending_approval', 'aborted>queued', 'aborted>pending_approval'
"""
"""Allowed transitions: start, end, lost lease, approval, denial at dispatch (queued>failed), retry."""

REFUSED = f"old.status <> new.status and (old.status || '>' || new.status) not in ({MOVES})"

TRIGGERS = {
    "sqlite": [
        f"""create trigger tasks_moves before update of status on tasks when {REFUSED}
        begin select raise(abort, 'a task does not make this move'); end"""
    ],
    "postgresql": [
        """create function refuse_task_move() returns trigger language plpgsql as $$ begin
            raise exception 'a task does not make this move' using errcode = 'check_violation';
        end $$""",
        f"""create trigger tasks_moves before update of status on tasks
        for each row when ({REFUSED}) execute function refuse_task_move()""",
    ],
}


def upgrade() -> None:
    for statement in STATEMENTS.split(";") + TRIGGERS[op.get_bind().dialect.name]:
        op.execute(statement)
