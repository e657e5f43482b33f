"""Daily count of the outcomes from one key that trained an agent, and an index of the tasks of one submitter."""

from alembic import op

revision = "0015"
down_revision = "0014"

STATEMENTS = """
create table taught_today (
    tenant text not null,
    agent_id text not null,
    submitted_by text not null,
    day bigint not null,
    n bigint not null,
    primary key (tenant, agent_id, submitted_by)
);
create index tasks_by_submitter on tasks (tenant, submitted_by, created_at, task_id);
"""


def upgrade() -> None:
    for statement in filter(None, (part.strip() for part in STATEMENTS.split(";"))):
        op.execute(statement)
