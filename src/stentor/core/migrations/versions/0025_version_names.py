"""Names of versions of notes; a version that has one is not pruned."""

from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.execute("alter table memory_versions add column name text")
