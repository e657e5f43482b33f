"""Versions of notes that were edited on disk, and agents that are archived."""

from alembic import op

revision = "0033"
down_revision = "0032"

STATEMENTS = """
alter table memory_versions add column provisional integer not null default 0;
alter table agents add column archived_at bigint;
alter table agents add column archived_from text
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
