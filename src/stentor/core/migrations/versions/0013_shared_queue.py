"""An index for several processes that claim tasks from the queue of one agent on PostgreSQL."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "create index tasks_waiting_for on tasks (assigned_agent, priority, queued_at) where status = 'queued'"
        )
