"""The models that a key may call; those made before may call all."""

from alembic import op

revision = "0055"
down_revision = "0054"


def upgrade() -> None:
    op.execute("alter table api_keys add column models text not null default '[]'")
