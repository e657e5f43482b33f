"""Limits of tasks by key, and on PostgreSQL the order in which submitters take turns in the queue of an agent."""

from alembic import op

revision = "0031"
down_revision = "0030"

STATEMENTS = """
alter table tasks add column limit_key text;
alter table tasks add column limit_max integer;
alter table tasks add column parked integer not null default 0;
alter table tasks add column turn bigint not null default 0;
create index tasks_running_by_limit on tasks (tenant, limit_key) where status = 'executing' and limit_key is not null;
create index tasks_parked on tasks (tenant, limit_key, priority, queued_at) where status = 'queued' and parked = 1;
create table parked_limits (
    tenant text not null,
    limit_key text not null,
    check_at bigint not null,
    primary key (tenant, limit_key)
);
create index parked_limits_due on parked_limits (check_at);
create table limit_starts (
    tenant text not null,
    limit_key text not null,
    started_at bigint not null,
    task_id text not null,
    epoch integer not null,
    primary key (tenant, limit_key, started_at, task_id, epoch)
)
"""
ON_POSTGRESQL = (
    "create index tasks_turns on tasks (assigned_agent, priority, turn, queued_at)"
    " where status = 'queued' and parked = 0",
    "create index tasks_turns_in_process on tasks (priority, turn, queued_at)"
    " where status = 'queued' and parked = 0 and runtime_kind <> 'worker'",
    "create index tasks_of_submitters on tasks (assigned_agent, submitted_by, priority, queued_at)"
    " where status = 'queued'",
    "drop index tasks_waiting_for",
    # Start-time fair queueing: a task comes one turn after the last of its submitter, but not before the head of the
    # queue, so that a submitter without a backlog is next and one that was idle has saved up nothing. A task that moves
    # from another agent shares the turn of its submitter's next younger task, and so comes before it.
    """create function take_task_turn() returns trigger language plpgsql as $$
    begin
        new.turn := least(
            greatest(
                coalesce((select t.turn + 1 from tasks t where t.status = 'queued'
                    and t.assigned_agent = new.assigned_agent and t.submitted_by = new.submitted_by
                    and t.priority = new.priority and t.queued_at <= new.queued_at
                    order by t.queued_at desc limit 1), 0),
                coalesce((select t.turn from tasks t where t.status = 'queued' and t.parked = 0
                    and t.assigned_agent = new.assigned_agent and t.priority = new.priority
                    order by t.turn, t.queued_at limit 1), 0)),
            (select t.turn from tasks t where t.status = 'queued'
                and t.assigned_agent = new.assigned_agent and t.submitted_by = new.submitted_by
                and t.priority = new.priority and t.queued_at > new.queued_at
                order by t.queued_at limit 1));
        return new;
    end $$""",
    # `stentor db copy` says that it copies: rows arrive as they were.
    """create trigger tasks_take_turn before insert on tasks for each row
    when (new.status = 'queued' and current_setting('stentor.copying', true) is distinct from 'on')
    execute function take_task_turn()""",
    """create trigger tasks_take_turn_again before update of status, assigned_agent on tasks for each row
    when (new.status = 'queued'
        and (old.status <> 'queued' or old.assigned_agent is distinct from new.assigned_agent))
    execute function take_task_turn()""",
)


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
    if op.get_bind().dialect.name == "postgresql":
        for statement in ON_POSTGRESQL:
            op.execute(statement)
