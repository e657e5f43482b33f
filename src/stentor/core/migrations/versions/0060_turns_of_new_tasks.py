"""On PostgreSQL the statement that inserts new tasks gives them their turns; the trigger is for older processes.

Minus 1 is the turn of a row that was inserted without one. Of the tasks of one commit, which were queued at the same
time, the function now takes the last one, as the statement does: before, any of them.
"""

from alembic import op

revision = "0060"
down_revision = "0059"

ON_POSTGRESQL = (
    "alter table tasks alter column turn set default -1",
    "drop trigger tasks_take_turn on tasks",
    """create trigger tasks_take_turn before insert on tasks for each row
    when (new.turn = -1 and new.status = 'queued' and current_setting('stentor.copying', true) is distinct from 'on')
    execute function take_task_turn()""",
    """create or replace function take_task_turn() returns trigger language plpgsql as $$
    begin
        new.turn := least(
            greatest(
                coalesce((select t.turn + 1 from tasks t where t.status = 'queued' and t.parked = 0
                    and t.assigned_agent = new.assigned_agent and t.submitted_by = new.submitted_by
                    and t.priority = new.priority and t.queued_at <= new.queued_at
                    order by t.queued_at desc, t.turn desc limit 1), 0),
                coalesce((select t.turn from tasks t where t.status = 'queued' and t.parked = 0
                    and t.assigned_agent = new.assigned_agent and t.priority = new.priority
                    order by t.turn, t.queued_at limit 1), 0)),
            (select t.turn from tasks t where t.status = 'queued' and t.parked = 0
                and t.assigned_agent = new.assigned_agent and t.submitted_by = new.submitted_by
                and t.priority = new.priority and t.queued_at > new.queued_at
                order by t.queued_at, t.turn limit 1));
        return new;
    end $$""",
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for statement in ON_POSTGRESQL:
            op.execute(statement)
