"""Model usage by day, summed from the calls up to the time in `llm_usage_marks`. Later calls are not in it yet."""

from alembic import op

revision = "0047"
down_revision = "0046"

STATEMENTS = """
create table llm_usage (
    tenant text not null,
    day bigint not null,
    provider text not null,
    model text not null,
    requests bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cost bigint not null,
    estimated bigint not null,
    unpriced bigint not null,
    primary key (tenant, day, provider, model)
){bare};
create table llm_usage_marks (
    tenant text not null primary key,
    summed_until bigint not null
)
"""
BARE = {"sqlite": " without rowid", "postgresql": ""}


def upgrade() -> None:
    for statement in STATEMENTS.format(bare=BARE[op.get_bind().dialect.name]).split(";"):
        op.execute(statement)
