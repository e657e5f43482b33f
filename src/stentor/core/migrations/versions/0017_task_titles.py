"""Titles of tasks. Tasks from before have none and show their type."""

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.execute("alter table tasks add column title text")


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
