"""Results of the providers' models for each kind of request to `auto`, and its responses, which may be graded."""

from alembic import op

revision = "0016"
down_revision = "0015"

STATEMENTS = """
create table model_weights (
    tenant text not null,
    model text not null,
    kind text not null,
    weight double precision not null,
    mean_ms double precision not null,
    samples integer not null,
    recent text not null,
    updated_at bigint not null,
    rewards text not null,
    tick bigint not null,
    since_change integer not null,
    changed_tick bigint not null,
    mean_cost double precision,
    primary key (tenant, model, kind)
);
create table model_answers (
    tenant text not null,
    answer_id text not null,
    model text not null,
    kind text not null,
    key_name text not null,
    decision_id text not null,
    sample integer,
    answered_at bigint not null,
    grade double precision check (grade >= 0 and grade <= 1),
    comment text,
    graded_by text,
    graded_at bigint,
    primary key (tenant, answer_id)
);
create index model_answers_by_time on model_answers (answered_at);
"""


def upgrade() -> None:
    for statement in filter(None, (part.strip() for part in STATEMENTS.split(";"))):
        op.execute(statement)
