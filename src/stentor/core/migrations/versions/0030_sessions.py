"""Sessions: conversations that outlive a task, their items and values, and the deletion of one in the audit's index."""

from alembic import op

revision = "0030"
down_revision = "0029"

STATEMENTS = """
create table sessions (
    tenant text not null,
    session_id text not null,
    name text,
    metadata text not null,
    created_by text not null,
    created_at bigint not null,
    updated_at bigint not null,
    item_count bigint not null default 0 check (item_count >= 0),
    value_count bigint not null default 0 check (value_count >= 0),
    stored_bytes bigint not null default 0 check (stored_bytes >= 0),
    last_number bigint not null default 0,
    held_by text,
    held_epoch bigint,
    primary key (tenant, session_id)
);
create index sessions_by_change on sessions (tenant, updated_at, session_id);
create table session_items (
    tenant text not null,
    session_id text not null,
    position bigint not null,
    kind text not null check (kind in ('message', 'summary')),
    source text not null check (source in ('own', 'input', 'result', 'step')),
    value text,
    value_hash text,
    size bigint not null,
    created_at bigint not null,
    task_id text,
    step_key text,
    primary key (tenant, session_id, position),
    check (value is not null or value_hash is not null)
);
create index session_items_summaries on session_items (tenant, session_id, position) where kind = 'summary';
create index session_items_of_contents on session_items (tenant, value_hash) where value_hash is not null;
create table session_values (
    tenant text not null,
    session_id text not null,
    key {ordered} not null,
    number bigint not null,
    encoding text not null check (encoding in ('json', 'base64')),
    value text,
    value_hash text,
    size bigint not null,
    updated_at bigint not null,
    primary key (tenant, session_id, key),
    check (value is not null or value_hash is not null)
);
create index session_values_by_change on session_values (tenant, session_id, number);
create index session_values_of_contents on session_values (tenant, value_hash) where value_hash is not null;
create index task_steps_of_contents on task_steps (tenant, value_hash) where value_hash is not null;
drop index events_audited
"""
# Keys are listed by prefix: PostgreSQL must order them by their bytes, as SQLite does.
ORDERED = {"sqlite": "text", "postgresql": 'text collate "C"'}
AUDITED = (
    "agent_registered agent_status_changed agent_updated approval_given authority_granted authority_revoked "
    "budget_changed checkpoint_taken content_deleted dispatch_denied history_accepted key_changed "
    "model_route_changed person_changed provider_changed rollback_completed rollback_failed rollback_started "
    "schedule_changed session_deleted sign_in_refused signed_in tool_denied update_approved update_deployed "
    "update_rejected update_rolled_back update_submitted violation_recorded webhook_changed webhook_disabled"
).split()


def upgrade() -> None:
    for statement in STATEMENTS.format(ordered=ORDERED[op.get_bind().dialect.name]).split(";"):
        op.execute(statement)
    # Not `in`: see 0022. Its condition is the one of the query, letter by letter.
    condition = " or ".join(f"event_type = '{name}'" for name in AUDITED)
    op.execute(f"create index events_audited on events (tenant, event_id) where {condition}")
