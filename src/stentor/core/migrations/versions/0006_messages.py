"""ATP messages: accepted, executed in order, answered.

A message in the state `executing` is leased by a process, or waits for its task.
"""

from alembic import op

revision = "0006"
down_revision = "0005"

STATEMENTS = """
create table atp_messages (
    tenant text not null,
    message_id text not null,
    status text not null check (status in ('queued', 'executing', 'completed', 'failed')),
    priority integer not null check (priority between 0 and 3),
    header text not null,
    content text not null,
    sender_id text not null,
    sender_agent text,
    principal text not null,
    created_at bigint not null,
    updated_at bigint not null,
    due_at bigint not null,
    epoch integer not null check (epoch >= 0),
    lease_until bigint,
    deadline_at bigint,
    task_id text,
    route text,
    response text,
    provenance_id text not null,
    head_id text not null,
    primary key (tenant, message_id),
    check (status = 'executing' or lease_until is null),
    check (status <> 'executing' or ((lease_until is null) = (task_id is not null) and epoch > 0)),
    check (status not in ('completed', 'failed') or response is not null)
);
create index atp_messages_queued on atp_messages (priority, created_at, message_id) where status = 'queued';
create index atp_messages_of_tenant on atp_messages (tenant, created_at, message_id) where status = 'queued';
create index atp_messages_executing on atp_messages (tenant, task_id) where status = 'executing';
create index atp_messages_leased on atp_messages (lease_until) where status = 'executing' and lease_until is not null;
create index atp_messages_limited on atp_messages (deadline_at) where status = 'executing' and deadline_at is not null;
create index memory_written_for on events (parent_id) where event_type = 'memory_written'
"""
MOVES = "'queued>executing', 'executing>queued', 'executing>completed', 'executing>failed'"
REFUSED = f"old.status <> new.status and (old.status || '>' || new.status) not in ({MOVES})"
TRIGGERS = {
    "sqlite": [
        f"""create trigger atp_messages_moves before update of status on atp_messages when {REFUSED}
        begin select raise(abort, 'a message does not make this move'); end"""
    ],
    "postgresql": [
        """create function refuse_message_move() returns trigger language plpgsql as $$ begin
            raise exception 'a message does not make this move' using errcode = 'check_violation';
        end $$""",
        f"""create trigger atp_messages_moves before update of status on atp_messages
        for each row when ({REFUSED}) execute function refuse_message_move()""",
    ],
}


def upgrade() -> None:
    for statement in STATEMENTS.split(";") + TRIGGERS[op.get_bind().dialect.name]:
        op.execute(statement)
