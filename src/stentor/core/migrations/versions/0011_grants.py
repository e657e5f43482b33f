"""Delegated authority: the grants of one agent to another for a task. The code checks that they only get narrower."""

from alembic import op

revision = "0011"
down_revision = "0010"

STATEMENTS = """
create table grants (
    grant_id text primary key,
    tenant text not null,
    task_id text not null,
    from_agent text not null,
    to_agent text not null,
    capabilities text not null,
    parent_id text references grants (grant_id),
    depth integer not null check (depth between 1 and 4),
    granted_by text not null,
    created_at bigint not null,
    expires_at bigint not null,
    revoked_at bigint,
    check ((depth = 1) = (parent_id is null))
);
create index grants_by_task on grants (tenant, task_id, grant_id);
create index grants_by_agent on grants (tenant, to_agent, grant_id)
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
