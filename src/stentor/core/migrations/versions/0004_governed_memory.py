"""The governed memory: the number of states seen of each record."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.execute(
        """create table memory_records (
            path text primary key,
            version bigint not null check (version >= 1),
            raw_hash text not null
        )"""
    )
