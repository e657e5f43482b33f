"""The team of a key when it called a model; empty for a key without a team, and for calls of before."""

from alembic import op

revision = "0061"
down_revision = "0060"


def upgrade() -> None:
    op.execute("alter table llm_calls add column team text not null default ''")
