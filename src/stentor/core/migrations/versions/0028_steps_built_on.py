"""Whether a program went on after a failed step, which a retry then does not repeat, and waits that end together.

A task may wait before its first attempt, and is aborted if what it waits for failed.
"""

from alembic import op

revision = "0028"
down_revision = "0027"

STATEMENTS = """
alter table task_steps add column handled integer not null default 0 check (handled in (0, 1));
alter table task_steps add column together text
"""
MOVES = """
    'queued>executing', 'queued>failed', 'queued>cancelled', 'queued>aborted',
    'pending_approval>queued', 'pending_approval>waiting', 'pending_approval>aborted', 'pending_approval>cancelled',
    'executing>completed', 'executing>failed', 'executing>aborted', 'executing>queued', 'executing>cancelled',
    'executing>waiting', 'waiting>queued', 'waiting>cancelled', 'waiting>aborted',
    'failed>queued', 'failed>pending_approval', 'aborted>queued', 'aborted>pending_approval'
"""
"""The transitions of version 0027, and those of a task that waits before its first attempt."""
REFUSED = f"old.status <> new.status and (old.status || '>' || new.status) not in ({MOVES})"
TRIGGERS = {
    "sqlite": (
        "drop trigger tasks_moves",
        f"""create trigger tasks_moves before update of status on tasks when {REFUSED}
        begin select raise(abort, 'a task does not make this move'); end""",
    ),
    "postgresql": (
        "drop trigger tasks_moves on tasks",
        f"""create trigger tasks_moves before update of status on tasks
        for each row when ({REFUSED}) execute function refuse_task_move()""",
    ),
}


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
    for statement in TRIGGERS[op.get_bind().dialect.name]:
        op.execute(statement)
