"""The LLM gateway: providers registered at runtime, one row per call, the spending per day.

Money is in billionths of a US dollar; a day is the number of days since 1970 in UTC.
"""

from alembic import op

revision = "0007"
down_revision = "0006"

STATEMENTS = """
create table llm_providers (
    tenant text not null,
    name text not null,
    format text not null check (format in ('openai', 'anthropic', 'gemini')),
    base_url text not null,
    sealed_key text,
    default_model text not null,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (tenant, name)
);

create table llm_calls (
    call_id text primary key,
    tenant text not null,
    key_name text not null,
    agent_id text,
    task_id text,
    operation text not null check (operation in ('chat', 'embed')),
    provider text not null,
    model text not null,
    outcome text not null,
    input_tokens bigint not null check (input_tokens >= 0),
    output_tokens bigint not null check (output_tokens >= 0),
    estimated integer not null check (estimated in (0, 1)),
    cost bigint check (cost >= 0),
    latency_ms bigint not null,
    happened_at bigint not null
);
create index llm_calls_by_time on llm_calls (tenant, happened_at);

create table llm_spent (
    tenant text not null,
    kind text not null check (kind in ('key', 'agent')),
    subject text not null,
    day bigint not null,
    tokens bigint not null,
    cost bigint not null,
    primary key (tenant, kind, subject, day)
)
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
