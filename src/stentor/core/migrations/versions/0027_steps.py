"""The journal of a task: its steps and what it waits for, and long values beside it, once for each content.

A task gets the status `waiting`, in which no agent holds it.
"""

from typing import Any

from alembic import op

revision = "0027"
down_revision = "0026"

STATEMENTS = """
alter table tasks add column pinned_agent text;
alter table tasks add column retry_epoch integer not null default 0;
create table task_steps (
    tenant text not null,
    task_id text not null,
    key text not null,
    event_id text not null,
    name text not null,
    kind text not null check (kind in ('step', 'effect', 'sleep', 'signal', 'question', 'child')),
    state text not null check (state in ('started', 'completed', 'failed')),
    position integer,
    epoch integer not null,
    encoding text not null check (encoding in ('json', 'base64')),
    value text,
    value_hash text,
    size bigint not null,
    error text,
    started_at bigint not null,
    ended_at bigint,
    wake_at bigint,
    reference text,
    options text,
    primary key (tenant, task_id, key),
    check ((state = 'started') = (ended_at is null)),
    check ((state = 'failed') = (error is not null)),
    check ((state = 'completed') = (value is not null or value_hash is not null))
);
create index task_steps_in_order on task_steps (tenant, task_id, event_id);
create index task_steps_open on task_steps (tenant, kind, event_id) where state = 'started';
create index task_steps_due on task_steps (wake_at) where state = 'started' and wake_at is not null;
create index task_steps_of_children on task_steps (reference) where state = 'started' and kind = 'child';
create table step_values (
    tenant text not null,
    hash text not null,
    content {blob} not null,
    primary key (tenant, hash)
);
create table task_signals (
    tenant text not null,
    task_id text not null,
    event_id text not null,
    name text not null,
    value text not null,
    primary key (tenant, task_id, event_id)
)
"""
BLOB = {"sqlite": "blob", "postgresql": "bytea"}
OLD_CHECK = "status in ('queued', 'pending_approval', 'executing',"
NEW_CHECK = "status in ('queued', 'pending_approval', 'executing', 'waiting',"

MOVES = """
    'queued>executing', 'queued>failed', 'queued>cancelled', 'queued>aborted',
    'pending_approval>queued', 'pending_approval>aborted', 'pending_approval>cancelled',
    'executing>completed', 'executing>failed', 'executing>aborted', 'executing>queued', 'executing>cancelled',
    'executing>waiting', 'waiting>queued', 'waiting>cancelled',
    'failed>queued', 'failed>pending_approval', 'aborted>queued', 'aborted>pending_approval'
"""
"""The transitions of version 0014, and those of a task that waits."""
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
    connection = op.get_bind()
    dialect = connection.dialect.name
    for statement in STATEMENTS.format(blob=BLOB[dialect]).split(";"):
        op.execute(statement)
    if dialect == "sqlite":
        _allow_waiting_on_sqlite(connection)
    else:
        op.execute("alter table tasks drop constraint tasks_status_check")
        check = f"{NEW_CHECK} 'completed', 'failed', 'aborted', 'cancelled')"
        op.execute(f"alter table tasks add constraint tasks_status_check check ({check})")
    for statement in TRIGGERS[dialect]:
        op.execute(statement)


def _allow_waiting_on_sqlite(connection: Any) -> None:
    """Change the constraint in the schema, as https://www.sqlite.org/lang_altertable.html describes it.

    SQLite cannot change a constraint otherwise without a copy of the table, which may have millions of rows.
    """
    run = connection.exec_driver_sql
    before = run("select sql from sqlite_schema where type = 'table' and name = 'tasks'").scalar()
    assert before.count(OLD_CHECK) == 1
    version = run("pragma schema_version").scalar()
    run("pragma writable_schema = on")
    run(
        "update sqlite_schema set sql = replace(sql, ?, ?) where type = 'table' and name = 'tasks'",
        (OLD_CHECK, NEW_CHECK),
    )
    run(f"pragma schema_version = {version + 1}")
    run("pragma writable_schema = off")
