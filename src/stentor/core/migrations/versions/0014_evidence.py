"""What routing learns from: rewards of the last outcomes, changes, cost; grades of tasks; how long a task may wait."""

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


def upgrade() -> None:
    for step in STEPS:
        op.execute(step)


def downgrade() -> None:
    raise NotImplementedError("restore the backup made before the upgrade")
