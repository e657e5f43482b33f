"""Task notes: the progress of the mirror of tasks, and the inbox notes that became tasks.

A cursor is an event of the run log: the notes have all changes that its writer made before it.
"""

from alembic import op

revision = "0005"
down_revision = "0004"

STATEMENTS = """
create table task_note_cursors (
    writer_id text primary key,
    event_id text not null,
    seen_at bigint not null
);

create table inbox_notes (
    tenant text not null,
    path text not null,
    content_hash text not null,
    modified_at bigint not null,
    attempt integer not null check (attempt >= 0),
    task_id text,
    problem text,
    state text not null check (state in ('asked', 'answered', 'refused')),
    answer_path text,
    answer_hash text,
    updated_at bigint not null,
    primary key (tenant, path)
);
create index inbox_open on inbox_notes (tenant, path) where state = 'asked'
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
