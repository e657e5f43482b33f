"""The time in which the limit of a parked task counts starts, and on PostgreSQL turns that parked tasks do not use up.

Tasks that are already parked get their time when they are parked again, as those of the previous version do.
"""

from alembic import op

revision = "0041"
down_revision = "0040"

STATEMENTS = """
alter table tasks add column limit_seconds integer not null default 0;
create index tasks_parked_by_period on tasks (tenant, limit_key, limit_seconds, limit_max desc)
    where status = 'queued' and parked = 1
"""
ON_POSTGRESQL = (
    "drop index tasks_of_submitters",
    "create index tasks_of_submitters on tasks (assigned_agent, submitted_by, priority, queued_at)"
    " where status = 'queued' and parked = 0",
    # As in 0031, but among the tasks that are not parked.
    """create or replace function take_task_turn() returns trigger language plpgsql as $$
    begin
        new.turn := least(
            greatest(
                coalesce((select t.turn + 1 from tasks t where t.status = 'queued' and t.parked = 0
                    and t.assigned_agent = new.assigned_agent and t.submitted_by = new.submitted_by
                    and t.priority = new.priority and t.queued_at <= new.queued_at
                    order by t.queued_at desc limit 1), 0),
                coalesce((select t.turn from tasks t where t.status = 'queued' and t.parked = 0
                    and t.assigned_agent = new.assigned_agent and t.priority = new.priority
                    order by t.turn, t.queued_at limit 1), 0)),
            (select t.turn from tasks t where t.status = 'queued' and t.parked = 0
                and t.assigned_agent = new.assigned_agent and t.submitted_by = new.submitted_by
                and t.priority = new.priority and t.queued_at > new.queued_at
                order by t.queued_at limit 1));
        return new;
    end $$""",
    "drop trigger tasks_take_turn_again on tasks",
    """create trigger tasks_take_turn_again before update of status, assigned_agent, parked on tasks for each row
    when (new.status = 'queued' and new.parked = 0
        and (old.status <> 'queued' or old.parked = 1 or old.assigned_agent is distinct from new.assigned_agent))
    execute function take_task_turn()""",
)


def upgrade() -> None:
    for statement in STATEMENTS.split(";"):
        op.execute(statement)
    if op.get_bind().dialect.name == "postgresql":
        for statement in ON_POSTGRESQL:
            op.execute(statement)
