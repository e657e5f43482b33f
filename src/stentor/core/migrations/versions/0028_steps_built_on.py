"""Whether a program went on after a failed step, which a retry then does not repeat, and waits that end together."""

from alembic import op

revision = "0028"
down_revision = "0027"

STATEMENTS = """
alter table task_steps add column handled integer not null default 0 check (handled in (0, 1));
alter table task_steps add column together text
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
