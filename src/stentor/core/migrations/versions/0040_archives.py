"""Archives of ended tasks: which there are, and which tasks and which numbers of the run log are in them.

An archive without `ended_at` is being written. Its rows are still in the database.
"""

from alembic import op

revision = "0040"
down_revision = "0039"

STATEMENTS = """
create table archives (
    number bigint primary key check (number > 0),
    name text not null unique,
    tenant text not null,
    tasks bigint not null check (tasks >= 0),
    events bigint not null check (events >= 0),
    size_bytes bigint not null check (size_bytes >= 0),
    first_at bigint,
    last_at bigint,
    started_at bigint not null,
    ended_at bigint,
    event_id text,
    check ((ended_at is null) = (event_id is null))
);
create table archived_tasks (
    tenant text not null,
    task_id text not null,
    submitted_by text not null,
    archive bigint not null,
    primary key (tenant, task_id)
){bare};
create table archived_events (
    number {number} primary key,
    archive bigint not null
);
create index archived_events_of_archive on archived_events (archive);
create index session_items_of_tasks on session_items (tenant, task_id) where source <> 'own'
"""
TYPES = {
    "sqlite": {"number": "integer", "bare": " without rowid"},
    "postgresql": {"number": "bigint", "bare": ""},
}


def upgrade() -> None:
    for statement in STATEMENTS.format(**TYPES[op.get_bind().dialect.name]).split(";"):
        op.execute(statement)
