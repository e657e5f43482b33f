"""Webhooks: subscriptions, one row per event and subscription, one row per attempt.

A delivery in the state `sending` is leased by a process.
"""

from alembic import op

revision = "0009"
down_revision = "0008"

STATEMENTS = """
create table webhook_subscriptions (
    subscription_id text primary key,
    tenant text not null,
    url text not null,
    events text not null,
    description text not null,
    enabled integer not null check (enabled in (0, 1)),
    disabled_reason text,
    sealed_secret text not null,
    old_secret text,
    old_until bigint,
    hold_until bigint not null,
    created_by text not null,
    created_at bigint not null,
    updated_at bigint not null,
    check ((old_secret is null) = (old_until is null)),
    check (enabled = 0 or disabled_reason is null)
);
create index webhook_subscriptions_of_tenant on webhook_subscriptions (tenant, subscription_id);

create table webhook_deliveries (
    delivery_id text primary key,
    tenant text not null,
    subscription_id text not null,
    event_id text not null,
    event text not null,
    subject text not null,
    status text not null check (status in ('waiting', 'sending', 'delivered', 'failed')),
    attempts integer not null check (attempts >= 0),
    epoch integer not null check (epoch >= 0),
    created_at bigint not null,
    due_at bigint not null,
    lease_until bigint,
    ended_at bigint,
    last_status integer,
    last_error text,
    replay_of text,
    check ((status = 'sending') = (lease_until is not null)),
    check ((status in ('delivered', 'failed')) = (ended_at is not null)),
    check (status in ('waiting', 'sending') or attempts > 0)
);
create index webhook_deliveries_due on webhook_deliveries (subscription_id, due_at, delivery_id)
    where status = 'waiting';
create index webhook_deliveries_in_order on webhook_deliveries (subscription_id, subject, delivery_id)
    where status in ('waiting', 'sending');
create index webhook_deliveries_leased on webhook_deliveries (lease_until) where status = 'sending';
create index webhook_deliveries_log on webhook_deliveries (subscription_id, delivery_id);
create index webhook_deliveries_of_event on webhook_deliveries (subscription_id, event_id);

create table webhook_attempts (
    delivery_id text not null,
    attempt integer not null check (attempt > 0),
    started_at bigint not null,
    duration_ms bigint not null,
    status_code integer,
    error text,
    response text,
    primary key (delivery_id, attempt),
    check (status_code is not null or error is not null)
)
"""
MOVES = "'waiting>sending', 'sending>waiting', 'sending>delivered', 'sending>failed'"
REFUSED = f"old.status <> new.status and (old.status || '>' || new.status) not in ({MOVES})"
TRIGGERS = {
    "sqlite": [
        f"""create trigger webhook_deliveries_moves before update of status on webhook_deliveries when {REFUSED}
        begin select raise(abort, 'a delivery does not make this move'); end"""
    ],
    "postgresql": [
        """create function refuse_delivery_move() returns trigger language plpgsql as $$ begin
            raise exception 'a delivery does not make this move' using errcode = 'check_violation';
        end $$""",
        f"""create trigger webhook_deliveries_moves before update of status on webhook_deliveries
        for each row when ({REFUSED}) execute function refuse_delivery_move()""",
    ],
}


def upgrade() -> None:
    for statement in STATEMENTS.split(";") + TRIGGERS[op.get_bind().dialect.name]:
        op.execute(statement)
