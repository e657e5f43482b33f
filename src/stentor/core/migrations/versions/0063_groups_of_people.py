"""The groups that gave a person its role at the last sign-in, as JSON; null for a sign-in before they were stored."""

from alembic import op

revision = "0063"
down_revision = "0062"


def upgrade() -> None:
    op.execute("alter table people add column member_of text")
