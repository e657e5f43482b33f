"""Alerts of the service about itself. `mailed` is the last state that an e-mail said."""

from alembic import op

revision = "0020"
down_revision = "0019"

STATEMENTS = """
create table alerts (
    alert_id text primary key,
    tenant text not null,
    kind text not null,
    subject text not null,
    severity text not null check (severity in ('warning', 'critical')),
    message text not null,
    agent_id text,
    opened_at bigint not null,
    resolved_at bigint,
    mailed text not null check (mailed in ('', 'opened', 'resolved'))
);
create unique index alerts_one_open on alerts (tenant, kind, subject) where resolved_at is null;
create index alerts_of_tenant on alerts (tenant, opened_at, alert_id);
create index alerts_by_time on alerts (opened_at)
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
