"""When a jump of the clock was last followed, and which agents have no worker, because the last one left.

`clock_jumps` has one row at most: of several processes that notice a jump, one gives the leases and timeouts more time.
"""

from alembic import op

revision = "0038"
down_revision = "0037"

STATEMENTS = """
create table clock_jumps (
    id integer primary key check (id = 1),
    noticed_at bigint not null
);
create table departed_agents (
    tenant text not null,
    agent_id text not null,
    left_at bigint not null,
    primary key (tenant, agent_id)
)
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
