"""Prompts and answers of model calls, beside the run log so that they can be deleted; and the tokens from a cache."""

from alembic import op

revision = "0024"
down_revision = "0023"

STATEMENTS = """
create table llm_contents (
    call_id text primary key,
    tenant text not null,
    key_name text not null,
    request {blob},
    response {blob},
    redacted integer not null check (redacted in (0, 1)),
    truncated integer not null check (truncated in (0, 1)),
    kept_at bigint not null
);
create index llm_contents_by_time on llm_contents (kept_at, call_id);
alter table llm_calls add column cached_tokens bigint not null default 0 check (cached_tokens >= 0)
"""
BLOB = {"sqlite": "blob", "postgresql": "bytea"}


def upgrade() -> None:
    for statement in STATEMENTS.format(blob=BLOB[op.get_bind().dialect.name]).split(";"):
        op.execute(statement)
