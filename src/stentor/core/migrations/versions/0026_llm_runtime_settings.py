"""Budgets, groups of models and fallbacks that admins set at runtime, their events in the index of the audit, and an
index of spending by day for the budgets of a tenant.
"""

from alembic import op

revision = "0026"
down_revision = "0025"

STATEMENTS = """
create table llm_runtime_settings (
    tenant text primary key,
    budgets text not null,
    routes text not null,
    version integer not null check (version > 0),
    updated_at bigint not null
);
create index llm_runtime_settings_changed on llm_runtime_settings (updated_at);
create index llm_spent_by_day on llm_spent (tenant, kind, day);
drop index events_audited
"""
AUDITED = (
    "agent_registered agent_status_changed agent_updated approval_given authority_granted authority_revoked "
    "budget_changed checkpoint_taken content_deleted dispatch_denied history_accepted key_changed "
    "model_route_changed person_changed provider_changed rollback_completed rollback_failed rollback_started "
    "sign_in_refused signed_in tool_denied update_approved update_deployed update_rejected update_rolled_back "
    "update_submitted violation_recorded webhook_changed webhook_disabled"
).split()


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
    # Not `in`: see 0022. Its condition is the one of the query, letter by letter.
    condition = " or ".join(f"event_type = '{name}'" for name in AUDITED)
    op.execute(f"create index events_audited on events (tenant, event_id) where {condition}")
