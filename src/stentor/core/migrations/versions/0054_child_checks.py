"""Queue of waits for a task that the background job must check: the task has ended, or the wait is new.

A trigger fills it, so that no code path that ends a task can forget to, nor can a process of the previous version. The
migration queues all open waits once, because some of their tasks may already have ended.
"""

from alembic import op

revision = "0054"
down_revision = "0053"

STATEMENTS = (
    """create table child_checks (
        check_at bigint not null,
        tenant text not null,
        task_id text not null,
        event_id text not null,
        primary key (check_at, tenant, task_id, event_id)
    )""",
    """insert into child_checks select 0, tenant, reference, event_id from task_steps
    where state = 'started' and kind = 'child'""",
)
ENDS = "new.completion_time is not null and old.completion_time is null"
# `tenant || ''` keeps the databases from using the index by tenant, which would read all its open waits.
NOTE = """insert into child_checks (check_at, tenant, task_id, event_id)
    select 0, new.tenant, new.task_id, new.head_id where exists (select 1 from task_steps
        where reference = new.task_id and tenant || '' = new.tenant and state = 'started' and kind = 'child')
    on conflict do nothing"""
TRIGGERS = {
    "sqlite": (f"create trigger tasks_end_waits after update of status on tasks when {ENDS} begin {NOTE}; end",),
    "postgresql": (
        f"""create function note_task_end() returns trigger language plpgsql as $$
        begin
            {NOTE};
            return null;
        end $$""",
        f"""create trigger tasks_end_waits after update of status on tasks
        for each row when ({ENDS}) execute function note_task_end()""",
    ),
}


def upgrade() -> None:
    for statement in (*STATEMENTS, *TRIGGERS[op.get_bind().dialect.name]):
        op.execute(statement)
