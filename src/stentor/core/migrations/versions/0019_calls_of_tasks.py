"""An index of the model calls of a task. Calls without a task are not in it."""

from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.execute("create index llm_calls_of_task on llm_calls (tenant, task_id, happened_at) where task_id is not null")
