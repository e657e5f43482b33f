"""Hashes of used receipts and proofs, stored until they expire, against replay."""

from alembic import op

revision = "0003"
down_revision = "0002"

STATEMENTS = """
create table authority_uses (
    use_hash text primary key,
    expires_at bigint not null
);
create index authority_uses_by_end on authority_uses (expires_at)
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
