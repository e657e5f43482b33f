"""Values of steps and contents in the DEFLATE format. Those from before stay as they are.

In a row with `deflated`, `value` is an empty text, which is no JSON: so its constraints need not change.
"""

from alembic import op

revision = "0035"
down_revision = "0034"

STATEMENTS = """
alter table task_steps add column deflated {blob};
alter table step_values add column is_deflated integer not null default 0 check (is_deflated in (0, 1))
"""
BLOB = {"sqlite": "blob", "postgresql": "bytea"}


def upgrade() -> None:
    for statement in STATEMENTS.format(blob=BLOB[op.get_bind().dialect.name]).split(";"):
        op.execute(statement)
