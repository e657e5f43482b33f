"""The memory: pending writes to the vault (intents), and earlier versions of its notes.

An intent exists from the decision until its file is written; one that a start finds is completed then.
"""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = """
create table memory_versions (
    path text not null,
    content_hash text not null,
    content {blob} not null,
    size bigint not null,
    origin text not null check (origin in ('bus', 'vault')),
    created_at bigint not null,
    primary key (path, content_hash)
);
create index memory_versions_by_time on memory_versions (path, created_at);

create table memory_intents (
    write_id text primary key,
    path text not null,
    before_hash text not null,
    after_hash text not null,
    created_at bigint not null
)
"""
BLOB = {"sqlite": "blob", "postgresql": "bytea"}


def upgrade() -> None:
    for statement in STATEMENTS.format(blob=BLOB[op.get_bind().dialect.name]).split(";"):
        op.execute(statement)
