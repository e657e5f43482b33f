"""The open steps of a task, in an index of their own: a signal or the end of a child reads no others."""

from alembic import op

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    op.execute("create index task_steps_open_of_task on task_steps (tenant, task_id, event_id) where state = 'started'")
