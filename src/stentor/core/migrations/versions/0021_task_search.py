"""An index of tasks by type, and on PostgreSQL the words of tasks. On SQLite these are in a file of their own."""

from alembic import op

revision = "0021"
down_revision = "0020"

POSTGRESQL = """
create sequence task_search_documents;
create table task_search (
    doc_id bigint primary key default nextval('task_search_documents'),
    tenant text not null,
    task_id text not null,
    words tsvector not null,
    unique (tenant, task_id)
);
create index task_search_words on task_search using gin (words);
create table task_search_position (number bigint not null, event_id text not null)
"""


def upgrade() -> None:
    op.execute("create index tasks_by_type on tasks (tenant, type, created_at, task_id)")
    if op.get_bind().dialect.name == "postgresql":
        for statement in POSTGRESQL.split(";"):
            op.execute(statement)
