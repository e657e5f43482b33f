"""The time in which the limit of a parked task counts starts.

Tasks that are already parked get their time when they are parked again, as those of the previous version do.
"""

from alembic import op

revision = "0041"
down_revision = "0040"

STATEMENTS = """
alter table tasks add column limit_seconds integer not null default 0;
create index tasks_parked_by_period on tasks (tenant, limit_key, limit_seconds, limit_max desc)
    where status = 'queued' and parked = 1
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
