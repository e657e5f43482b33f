"""API keys that are made at runtime. Their secrets are not stored, only SHA-256 digests."""

from alembic import op

revision = "0018"
down_revision = "0017"

STATEMENTS = """
create table api_keys (
    name text primary key,
    tenant text not null,
    digest text not null unique,
    hint text not null,
    role text not null check (role in ('viewer', 'operator', 'approver', 'admin', 'agent')),
    permissions text not null,
    description text not null,
    memory text not null,
    budgets text not null,
    created_by text not null,
    created_at bigint not null,
    updated_at bigint not null,
    version integer not null check (version > 0),
    expires_at bigint,
    revoked_at bigint,
    revoked_by text,
    last_used_at bigint,
    check ((revoked_at is null) = (revoked_by is null))
);
create index api_keys_of_tenant on api_keys (tenant, created_at, name);
create index api_keys_changed on api_keys (updated_at)
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
