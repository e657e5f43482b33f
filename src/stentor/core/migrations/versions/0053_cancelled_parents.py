"""Cancelled tasks whose subtasks are still to be cancelled."""

from alembic import op

revision = "0053"
down_revision = "0052"


def upgrade() -> None:
    op.execute(
        "create table cancelled_parents (tenant text not null, task_id text not null, primary key (tenant, task_id))"
    )
