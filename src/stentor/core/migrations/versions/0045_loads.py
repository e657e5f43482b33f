"""The loads of the recent outcomes of an agent at a task type; records of models have the same fields."""

from alembic import op

revision = "0045"
down_revision = "0044"


def upgrade() -> None:
    for table in ("hebbian_weights", "model_weights"):
        op.execute(f"alter table {table} add column loads text not null default ''")
