"""The outcomes of an agent at a task type by length of the input."""

from alembic import op

revision = "0051"
down_revision = "0050"


def upgrade() -> None:
    op.execute("alter table hebbian_weights add column lengths text not null default ''")
