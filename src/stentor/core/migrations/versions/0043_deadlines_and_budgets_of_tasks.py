"""Deadlines of tasks, and what the model calls of a task with a budget and of its subtasks have cost."""

from alembic import op

revision = "0043"
down_revision = "0042"

STATEMENTS = """
alter table tasks add column end_by bigint;
create index tasks_with_deadline on tasks (end_by) where end_by is not null and completion_time is null;
create table task_spent (
    tenant text not null,
    task_id text not null,
    cost bigint not null,
    primary key (tenant, task_id)
)
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
