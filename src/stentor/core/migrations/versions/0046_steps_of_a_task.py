"""PostgreSQL takes a task to have fifty steps, from the next `analyze` of the table on.

Where most tasks have one step it takes a task to have one, and then of two indexes that begin with the task either, so
that each step of a long journal reads the steps before it.
"""

from alembic import op

revision = "0046"
down_revision = "0045"


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("alter table task_steps alter column task_id set (n_distinct = -0.02)")
