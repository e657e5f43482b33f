"""E-mails of alerts with an id of their own, and of a task its first start and its last heartbeat.

`first_started_at` is null for a task that has not started; in one from before, also if it has. A state of an alert is
in `mailed` from the moment on when it is part of an e-mail, which is kept until it was taken.
"""

from alembic import op

revision = "0034"
down_revision = "0033"

STATEMENTS = """
alter table tasks add column first_started_at bigint;
alter table tasks add column heartbeat_at bigint;
create table alert_mails (
    mail_id text primary key,
    message_id text not null,
    subject text not null,
    body text not null,
    created_at bigint not null,
    sent_at bigint,
    given_up integer not null default 0
);
create index alert_mails_open on alert_mails (created_at) where sent_at is null and given_up = 0
"""


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
