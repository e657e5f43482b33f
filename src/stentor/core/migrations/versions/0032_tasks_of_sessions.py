"""The session of a task in a column of its own, so that the tasks of a session are found without reading all."""

from alembic import op

revision = "0032"
down_revision = "0031"

STATEMENTS = """
alter table tasks add column session_id text;
create index tasks_of_sessions on tasks (tenant, session_id, created_at, task_id) where session_id is not null
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
