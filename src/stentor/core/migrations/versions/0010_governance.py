"""Governance: updates of agents, checkpoints of their state, rollbacks to one.

An update is `patched` if this service deploys it itself. The states are CHECK constraints, the transitions triggers.
"""

from alembic import op

revision = "0010"
down_revision = "0009"

STATEMENTS = """
create table governance_updates (
    tenant text not null,
    update_id text not null,
    agent_id text not null,
    status text not null check (status in ('submitted', 'approved', 'rejected', 'deploying', 'deployed',
        'rolled_back')),
    tier integer not null check (tier between 1 and 3),
    patched integer not null check (patched in (0, 1)),
    update_type text not null,
    description text not null,
    changes text not null,
    named_checkpoint text,
    proposed_by text not null,
    body_hash text not null,
    submitted_status text not null check (submitted_status in ('submitted', 'approved', 'rejected')),
    basis text not null,
    base_hash text,
    submitted_at bigint not null,
    approval_deadline bigint not null,
    decided_by text,
    decision text,
    approved_at bigint,
    rejected_at bigint,
    deployed_at bigint,
    rolled_back_at bigint,
    checkpoint_id text,
    test_results text,
    notes text,
    provenance_id text not null,
    head_id text not null,
    updated_at bigint not null,
    primary key (tenant, update_id),
    check ((status = 'submitted') = (decided_by is null)),
    check ((status = 'rejected') = (rejected_at is not null)),
    check ((status in ('submitted', 'rejected')) = (approved_at is null)),
    check (status <> 'deployed' or deployed_at is not null),
    check ((status = 'rolled_back') = (rolled_back_at is not null)),
    check (patched = 0 or base_hash is not null or status in ('submitted', 'rejected'))
);
create index governance_updates_by_time on governance_updates (tenant, submitted_at, update_id);
create index governance_updates_by_status on governance_updates (tenant, status, tier, submitted_at);
create index governance_updates_by_agent on governance_updates (tenant, agent_id, submitted_at);
create index governance_updates_to_deploy on governance_updates (updated_at)
    where patched = 1 and status in ('approved', 'deploying');

create table checkpoints (
    tenant text not null,
    checkpoint_id text not null,
    agent_id text not null,
    cause text not null check (cause in ('manual', 'deployment', 'clear_violations', 'trust_change')),
    state text not null,
    state_hash text not null,
    taken_by text not null,
    taken_at bigint not null,
    provenance_id text not null,
    primary key (tenant, checkpoint_id)
);
create index checkpoints_by_agent on checkpoints (tenant, agent_id, taken_at, checkpoint_id);
create index checkpoints_by_tenant on checkpoints (tenant, taken_at, checkpoint_id);
create index checkpoints_by_age on checkpoints (taken_at);

create table rollbacks (
    tenant text not null,
    rollback_id text not null,
    checkpoint_id text not null,
    agent_id text not null,
    update_id text,
    status text not null check (status in ('initiated', 'in_progress', 'completed', 'failed')),
    initiated_by text not null,
    claimed_by text,
    reason text not null,
    details text,
    initiated_at bigint not null,
    estimated_completion bigint not null,
    completed_at bigint,
    verified integer not null check (verified in (0, 1)),
    notes text,
    provenance_id text not null,
    head_id text not null,
    primary key (tenant, rollback_id),
    check ((status in ('completed', 'failed')) = (completed_at is not null)),
    check ((status = 'completed') = (verified = 1))
);
create index rollbacks_by_time on rollbacks (tenant, initiated_at, rollback_id);
create index rollbacks_open on rollbacks (initiated_at) where status in ('initiated', 'in_progress')
"""

MOVES = {
    "governance_updates": """'submitted>approved', 'submitted>rejected', 'approved>deploying',
        'deploying>deployed', 'deploying>rolled_back', 'deployed>rolled_back'""",
    "rollbacks": "'initiated>in_progress', 'in_progress>completed', 'in_progress>failed'",
}
NOUNS = {"governance_updates": "an update", "rollbacks": "a rollback"}


def _refused(table: str) -> str:
    return f"old.status <> new.status and (old.status || '>' || new.status) not in ({MOVES[table]})"


def _triggers(dialect: str, table: str) -> list[str]:
    sentence, refused = f"{NOUNS[table]} does not make this move", _refused(table)
    if dialect == "sqlite":
        return [
            f"""create trigger {table}_moves before update of status on {table} when {refused}
            begin select raise(abort, '{sentence}'); end"""
        ]
    return [
        f"""create function refuse_{table}_move() returns trigger language plpgsql as $$ begin
            raise exception '{sentence}' using errcode = 'check_violation';
        end $$""",
        f"""create trigger {table}_moves before update of status on {table}
        for each row when ({refused}) execute function refuse_{table}_move()""",
    ]


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
    for table in MOVES:
        for statement in _triggers(op.get_bind().dialect.name, table):
            op.execute(statement)
