"""How each version of a note came about, and when one that came back was stored first.

Both are unknown for versions from before.
"""

from alembic import op

revision = "0036"
down_revision = "0035"

STATEMENTS = """
alter table memory_versions add column cause text check (cause in ('found', 'edited', 'written', 'restored'));
alter table memory_versions add column first_at bigint
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
