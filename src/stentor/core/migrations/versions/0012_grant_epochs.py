"""The epoch of the claim under which a grant was made. Older grants have epoch 0 and are no longer valid."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.execute("alter table grants add column epoch integer not null default 0")
