"""On PostgreSQL one function says which turns are free, for the insert of new tasks and for the trigger.

And more new words wait before the write that adds them to the search index has to sort them in: the service does so
before, on another connection.
"""

from alembic import op

revision = "0062"
down_revision = "0061"

ON_POSTGRESQL = (
    # Start-time fair queueing, see 0031 and 0041: the turn of the next task of a submitter, and the greatest that a
    # task may have that was queued at this time.
    """create function find_turns(agent text, submitter text, urgency integer, at bigint, out first bigint,
        out most bigint) language plpgsql stable as $$
    begin
        first := greatest(
            coalesce((select t.turn + 1 from tasks t where t.status = 'queued' and t.parked = 0
                and t.assigned_agent = agent and t.submitted_by = submitter and t.priority = urgency
                and t.queued_at <= at order by t.queued_at desc, t.turn desc limit 1), 0),
            coalesce((select t.turn from tasks t where t.status = 'queued' and t.parked = 0
                and t.assigned_agent = agent and t.priority = urgency order by t.turn, t.queued_at limit 1), 0));
        most := (select t.turn from tasks t where t.status = 'queued' and t.parked = 0
            and t.assigned_agent = agent and t.submitted_by = submitter and t.priority = urgency
            and t.queued_at > at order by t.queued_at, t.turn limit 1);
    end $$""",
    """create or replace function take_task_turn() returns trigger language plpgsql as $$
    begin
        new.turn := (select least(first, most)
            from find_turns(new.assigned_agent, new.submitted_by, new.priority, new.queued_at));
        return new;
    end $$""",
    "alter index task_search_words set (gin_pending_list_limit = 16384)",
)


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for statement in ON_POSTGRESQL:
            op.execute(statement)
