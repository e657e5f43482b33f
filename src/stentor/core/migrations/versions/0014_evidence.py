"""The input of routing: rewards of the last outcomes, changes, cost; grades of tasks; the queue timeout of a task."""

from alembic import op

revision = "0014"
down_revision = "0013"

STEPS = (
    "alter table hebbian_weights add column rewards text not null default ''",
    "alter table hebbian_weights add column tick bigint not null default 0",
    "alter table hebbian_weights add column since_change integer not null default -1",
    "alter table hebbian_weights add column changed_tick bigint not null default 0",
    "alter table hebbian_weights add column mean_cost double precision",
    "alter table hebbian_history add column sample integer",
    "alter table tasks add column queue_timeout_seconds integer",
    "alter table tasks add column queue_deadline_at bigint",
    "create index tasks_by_queue_deadline on tasks (queue_deadline_at) "
    "where status = 'queued' and queue_deadline_at is not null",
    """create table task_grades (
        tenant text not null,
        task_id text not null,
        epoch integer not null,
        agent_id text not null,
        grade double precision not null check (grade >= 0 and grade <= 1),
        comment text,
        graded_by text not null,
        graded_at bigint not null,
        learned integer not null,
        primary key (tenant, task_id)
    )""",
)

MOVES = """
    'queued>executing', 'queued>failed', 'queued>cancelled', 'queued>aborted',
    'pending_approval>queued', 'pending_approval>aborted', 'pending_approval>cancelled',
    'executing>completed', 'executing>failed', 'executing>aborted', 'executing>queued', 'executing>cancelled',
    'failed>queued', 'failed>pending_approval', 'aborted>queued', 'aborted>pending_approval'
"""
"""The transitions of version 0001, and the end of a task that exceeds its queue timeout (queued>aborted)."""
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
    for step in STEPS + TRIGGERS[op.get_bind().dialect.name]:
        op.execute(step)
