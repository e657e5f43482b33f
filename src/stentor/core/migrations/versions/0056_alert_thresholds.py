"""Thresholds of alerts that admins set, and their changes in the audit's index."""

from alembic import op

revision = "0056"
down_revision = "0055"

TABLE = """
create table alert_thresholds (
    tenant text primary key,
    failure_percent double precision,
    wait_seconds double precision,
    budget_percent double precision,
    set_by text not null,
    set_at bigint not null
)
"""
AUDITED = (
    "agent_registered agent_status_changed agent_updated alert_thresholds_changed approval_given approval_refused "
    "authority_granted authority_revoked budget_changed checkpoint_taken connection_changed content_deleted "
    "dispatch_denied history_accepted key_changed memory_invalidated memory_restored model_route_changed "
    "person_changed provider_changed rollback_completed rollback_failed rollback_started schedule_changed "
    "session_deleted sign_in_refused signed_in tool_denied trust_changed update_approved update_deployed "
    "update_rejected update_rolled_back update_submitted violation_recorded webhook_changed webhook_disabled"
).split()


def upgrade() -> None:
    op.execute(TABLE)
    op.execute("drop index events_audited")
    # Not `in`: see 0022. Its condition is the one of the query, letter by letter.
    condition = " or ".join(f"event_type = '{name}'" for name in AUDITED)
    op.execute(f"create index events_audited on events (tenant, event_id) where {condition}")
