"""People who sign in with a provider, and their sign-ins in the index of the audit."""

from alembic import op

revision = "0023"
down_revision = "0022"

STATEMENTS = """
create table people (
    name text primary key,
    tenant text not null,
    issuer text not null,
    subject text,
    role text not null check (role in ('viewer', 'operator', 'approver', 'admin')),
    permissions text not null,
    sessions text not null,
    created_at bigint not null,
    updated_at bigint not null,
    version integer not null check (version > 0),
    last_sign_in_at bigint not null,
    blocked_at bigint,
    blocked_by text,
    check ((blocked_at is null) = (blocked_by is null)),
    unique (issuer, subject)
);
create index people_of_tenant on people (tenant, name);
create index people_changed on people (updated_at);
drop index events_audited
"""
AUDITED = (
    "agent_registered agent_status_changed agent_updated approval_given authority_granted authority_revoked "
    "checkpoint_taken content_deleted dispatch_denied history_accepted key_changed person_changed "
    "provider_changed rollback_completed rollback_failed rollback_started sign_in_refused signed_in tool_denied "
    "update_approved update_deployed update_rejected update_rolled_back update_submitted violation_recorded "
    "webhook_changed webhook_disabled"
).split()


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
    # Not `in`: see 0022. Its condition is the one of the query, letter by letter.
    condition = " or ".join(f"event_type = '{name}'" for name in AUDITED)
    op.execute(f"create index events_audited on events (tenant, event_id) where {condition}")
