"""How far the subtasks of a cancelled task have been read, so that those that have ended are not read again."""

from alembic import op

revision = "0058"
down_revision = "0057"


def upgrade() -> None:
    op.execute("alter table cancelled_parents add column seen_created_at bigint not null default 0")
    op.execute("alter table cancelled_parents add column seen_task_id text not null default ''")
