"""Schedules, what was done at their times, and their changes in the index of the audit."""

from alembic import op

revision = "0029"
down_revision = "0028"

STATEMENTS = """
create table schedules (
    tenant text not null,
    name text not null,
    cron text not null,
    timezone text not null,
    missed text not null check (missed in ('skip', 'one', 'all')),
    overlap text not null check (overlap in ('allow', 'skip')),
    task text not null,
    paused integer not null check (paused in (0, 1)),
    paused_reason text,
    next_at bigint,
    created_by text not null,
    runs_as text not null,
    created_at bigint not null,
    updated_at bigint not null,
    version integer not null check (version > 0),
    last_task_id text,
    primary key (tenant, name),
    check ((paused = 1) = (next_at is null))
);
create index schedules_due on schedules (next_at) where next_at is not null;
create table schedule_runs (
    tenant text not null,
    name text not null,
    run_id text not null,
    due_at bigint not null,
    happened_at bigint not null,
    outcome text not null check (outcome in ('submitted', 'denied', 'skipped')),
    task_id text,
    reason text,
    primary key (tenant, name, run_id)
);
drop index events_audited
"""
AUDITED = (
    "agent_registered agent_status_changed agent_updated approval_given authority_granted authority_revoked "
    "budget_changed checkpoint_taken content_deleted dispatch_denied history_accepted key_changed "
    "model_route_changed person_changed provider_changed rollback_completed rollback_failed rollback_started "
    "schedule_changed sign_in_refused signed_in tool_denied update_approved update_deployed update_rejected "
    "update_rolled_back update_submitted violation_recorded webhook_changed webhook_disabled"
).split()


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
    # Not `in`: see 0022. Its condition is the one of the query, letter by letter.
    condition = " or ".join(f"event_type = '{name}'" for name in AUDITED)
    op.execute(f"create index events_audited on events (tenant, event_id) where {condition}")
