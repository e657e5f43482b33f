"""Titles of tasks, of which tasks from before have none, and an index of subtasks."""

from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.execute("alter table tasks add column title text")
    op.execute(
        "create index tasks_by_parent on tasks (tenant, parent_task_id, created_at, task_id)"
        " where parent_task_id is not null"
    )
