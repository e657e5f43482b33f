"""On SQLite an index of the queued tasks by agent, priority and submitter, in place of one by priority."""

from alembic import op

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "create index tasks_in_lanes on tasks (assigned_agent, priority, submitted_by, queued_at, task_id)"
            " where status = 'queued' and parked = 0"
        )
        op.execute("drop index tasks_waiting")
