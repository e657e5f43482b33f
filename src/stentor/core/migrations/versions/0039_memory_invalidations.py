"""Invalidations of the sources of notes, and what was invalidated in the audit's index."""

from alembic import op

revision = "0039"
down_revision = "0038"

STATEMENTS = """
create table memory_invalidations (
    invalidation_id text primary key,
    source text not null,
    reason text not null,
    invalidated_by text not null,
    invalidated_at bigint not null,
    restored_by text,
    restored_at bigint,
    restore_reason text
);
create unique index memory_invalidations_active on memory_invalidations (source) where restored_at is null;
drop index events_audited
"""
AUDITED = (
    "agent_registered agent_status_changed agent_updated approval_given authority_granted authority_revoked "
    "budget_changed checkpoint_taken content_deleted dispatch_denied history_accepted key_changed "
    "memory_invalidated memory_restored model_route_changed person_changed provider_changed rollback_completed "
    "rollback_failed rollback_started schedule_changed session_deleted sign_in_refused signed_in tool_denied "
    "update_approved update_deployed update_rejected update_rolled_back update_submitted violation_recorded "
    "webhook_changed webhook_disabled"
).split()


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
    # Not `in`: see 0022. Its condition is the one of the query, letter by letter.
    condition = " or ".join(f"event_type = '{name}'" for name in AUDITED)
    op.execute(f"create index events_audited on events (tenant, event_id) where {condition}")
