"""Task lists and counts.

Counts are maintained per status and agent, for each hour and in total, so that no list scans the table of tasks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from stentor.core import jsontext
from stentor.core.clock import HOUR
from stentor.core.db import CounterTable, RowsSql, Sql, Tx
from stentor.core.errors import NotFound
from stentor.core.ids import LAST_GROUP_START, UUID_LENGTH
from stentor.domains.tasks.model import TaskFilter, TaskSummary
from stentor.domains.tasks.search.model import TaskText
from stentor.domains.tasks.visibility_queries import ASSIGNED, SUBMITTED, VISIBLE

_COUNTS = CounterTable("task_counts", ("tenant", "hour", "status", "agent_id"))
MAX_COUNTED = 1_000
"""Tasks that a count for an alert looks at; more are counted as this many."""
MAX_TOTAL = 10_000
"""Tasks that are looked at, the newest first, to count those of a list with a condition that no counts are kept for."""
MAX_COMPARED = 50_000
"""Tasks that are counted to learn which of several conditions the fewest tasks fulfil."""
IDS_PER_STATEMENT = 200
"""Ids in one statement; a fixed number, so that the SQL text is always the same."""
MAX_SEARCHED = 20_000
"""Characters of an input, a result and an error that the search knows."""
MAX_CHOICES = 200
"""Types or submitters that a list of them has."""
ALL_HOURS = -1
"""The "hour" of the count over all hours."""
_CONDITIONS = {
    "status": "status = :status",
    "agent_id": "assigned_agent = :agent_id",
    "type": "type = :type",
    "submitted_by": "submitted_by = :submitted_by",
    "session": "session_id = :session",
    "created_after": "created_at > :created_after",
    "before": "(created_at, task_id) < (:before_time, :before_id)",
}
_RANKED = ("session", "submitted_by", "agent_id", "type", "status")
"""Conditions that have an index."""
_RANKED_COLUMNS = "session_id, submitted_by, assigned_agent, type, status"
_NEWEST_FIRST = "order by created_at desc, task_id desc limit"
_COUNT_CONDITIONS = {
    "status": "status = :status",
    "agent_id": "agent_id = :agent_id",
    "created_after": "hour > :hour",
}
REFERENCE_TASKS = 50_000
"""Tasks, the newest, whose ids are searched for a part of an id."""
_COLUMNS = (
    "task_id, status, assigned_agent, type, created_at, completion_time, start_time, coalesce(title, type) as title, "
    "epoch, first_started_at"
)
_COUNT_BY_STATUS = Sql("select status, sum(n) from task_counts where tenant = :tenant and hour = -1 group by status")
# Tenant by tenant: the table has a row for every hour and its key begins with the tenant, so that one query over all
# tenants would scan it.
_NEXT_TENANT = Sql("select min(tenant) from task_counts where tenant > :after")
_NEWEST_IDS = """select task_id from tasks where tenant = :tenant order by created_at desc, task_id desc
    limit :scanned"""
_LIST_BY_REFERENCE = Sql(
    f"""select {_COLUMNS} from tasks where tenant = :tenant and task_id in (
        select cast(:text as text) union all
        select task_id from ({_NEWEST_IDS}) as newest where replace(task_id, :text, '') <> task_id
            and (substr(task_id, 1, :length) = :text or substr(task_id, length(task_id) - :length + 1) = :text
                or (length(task_id) = {UUID_LENGTH} and substr(task_id, {LAST_GROUP_START}, :length) = :text)))
        and {VISIBLE}
    order by case when task_id = :text then 0 else 1 end, created_at desc, task_id desc limit :limit"""
)
_IS_SUBTASK = f"tenant = :tenant and parent_task_id = :parent and {VISIBLE}"
_LIST_SUBTASKS = Sql(
    f"""select {_COLUMNS} from tasks where {_IS_SUBTASK} and (created_at, task_id) > (:after_time, :after_id)
    order by created_at, task_id limit :limit"""
)
_COUNT_SUBTASKS = Sql(f"select count(*) from (select 1 from tasks where {_IS_SUBTASK} limit {MAX_TOTAL}) as counted")
_HAS_GRADE = Sql("select 1 from task_grades where tenant = :tenant limit 1")
_WHOLE_INPUT = Sql("select input from tasks where tenant = :tenant and task_id = :task_id")
_FIND_INPUT = Sql("select substr(input, 1, :length) from tasks where tenant = :tenant and task_id = :task_id")
_COUNT_OUTCOMES = Sql(
    f"""select coalesce(assigned_agent, '') as agent_id, sum(case when status = 'completed' then 0 else 1 end), count(*)
    from (
        select assigned_agent, status, outcome_class, start_time, completion_time from tasks where tenant = :tenant
        order by created_at desc, task_id desc limit {MAX_COUNTED}
    ) as newest
    where (status in ('completed', 'failed') or outcome_class = 'timeout' and start_time is not null)
        and completion_time >= :since
    group by agent_id order by agent_id"""
)
_OLDEST = Sql(
    f"""select count(*), min(waits_since) from (
        select coalesce(queued_at, created_at) as waits_since from tasks where tenant = :tenant and status = :status
            and parked = 0 order by created_at, task_id limit {MAX_COUNTED}
    ) as oldest"""
)
_COUNT_RUNNING = Sql(
    """select count(*) from tasks
    where tenant = :tenant and assigned_agent = :agent_id and status in ('executing', 'waiting')"""
)
_IS_EXECUTING = Sql(
    """select 1 from tasks
    where tenant = :tenant and assigned_agent = :agent_id and status = 'executing' limit 1"""
)
_LIST_EXECUTING = RowsSql(
    ("tenant", "task_id"),
    """select tasks.tenant, tasks.task_id from given join tasks
        on tasks.tenant = given.tenant and tasks.task_id = given.task_id where tasks.status = 'executing'""",
)
_COUNT_OPEN = Sql(
    """select count(*) from tasks where tenant = :tenant and assigned_agent = :agent_id
    and status in ('pending_approval', 'queued', 'executing', 'waiting')"""
)
_COUNT_COMPARED = {
    name: Sql(
        f"""select count(*) from (
            select 1 from tasks where tenant = :tenant and {_CONDITIONS[name]} limit {MAX_COMPARED}) as compared"""
    )
    for name in ("type", "submitted_by", "session")
}
_NEXT_VALUE = {
    name: Sql(f"select min({name}) from tasks where tenant = :tenant and {name} > :after")
    for name in ("type", "submitted_by")
}
_IDS = ", ".join(f":id_{n}" for n in range(IDS_PER_STATEMENT))
# With `+` SQLite does not look for these tasks by their time.
_LIST_MATCHING = Sql(
    f"""select {_COLUMNS} from tasks where tenant = :tenant and task_id in ({_IDS})
    and (cast(:status as text) is null or status = :status)
    and (cast(:agent_id as text) is null or assigned_agent = :agent_id)
    and (cast(:type as text) is null or type = :type)
    and (cast(:submitted_by as text) is null or submitted_by = :submitted_by)
    and (cast(:session as text) is null or session_id = :session)
    and +created_at > :created_after and {VISIBLE}"""
)
_READ_TEXTS = Sql(
    f"""select task_id, title, type, substr(input, 1, {MAX_SEARCHED}), substr(result, 1, {MAX_SEARCHED}),
    substr(error, 1, {MAX_SEARCHED}) from tasks where tenant = :tenant and task_id in ({_IDS})"""
)
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")
_statements: dict[tuple[str, ...], Sql] = {}
"""Compiled statements by kind and conditions; there are only a few combinations."""


def update_counts(tx: Tx, tenant: str, created_at: int, *changes: tuple[str, str | None, int]) -> None:
    """Add to the counts; each change is (status, agent, amount)."""
    for status, agent_id, amount in changes:
        # By the hour of the submission, whatever the change, so that the numbers of an hour never become negative.
        for hour in (ALL_HOURS, created_at // HOUR):
            tx.increment(_COUNTS, (tenant, hour, status, agent_id or ""), amount)


def read_page(tx: Tx, tenant: str, task_filter: TaskFilter, limit: int, offset: int) -> list[TaskSummary]:
    """List the matching tasks, newest first."""
    params = _params(tenant, task_filter)
    names = tuple(name for name in _CONDITIONS if getattr(task_filter, name) is not None)
    if task_filter.key is not None:
        sql = _statements.get(("own", *names)) or _statements.setdefault(("own", *names), _own_page_sql(names))
        params |= {"key": task_filter.key, "most": limit + offset}
    else:
        key = (_find_rarest(tx, tenant, task_filter), *names)
        sql = _statements.get(key) or _statements.setdefault(key, _page_sql(*key))
    return [TaskSummary(*row) for row in tx.rows(sql, **params, limit=limit, offset=offset)]


def count_matching(tx: Tx, tenant: str, task_filter: TaskFilter) -> tuple[int, bool]:
    """Return how many tasks match on all pages, and whether all of them are counted.

    The tasks of one key are counted row by row, because no counts are maintained by key.
    """
    is_counted = task_filter.type is None and task_filter.submitted_by is None and task_filter.session is None
    if task_filter.key is not None:
        total = _count_own_tasks(tx, tenant, task_filter)
    elif is_counted:
        total = count_tasks(tx, tenant, task_filter)
    else:
        return _count_some(tx, tenant, task_filter)
    return total, is_counted or total < MAX_TOTAL


def count_tasks(tx: Tx, tenant: str, task_filter: TaskFilter) -> int:
    """Count the tasks with a status, of an agent or since a time.

    Whole hours come from the counts, the first partial hour from the index.
    """
    params = _params(tenant, task_filter)
    names = tuple(name for name in _COUNT_CONDITIONS if getattr(task_filter, name) is not None)
    head = "select coalesce(sum(n), 0) from task_counts"
    if task_filter.created_after is None:
        return _count(tx, ("ever", *names), f"{head} where hour = {ALL_HOURS} and", _COUNT_CONDITIONS, params)
    total = _count(tx, ("hours", *names), f"{head} where", _COUNT_CONDITIONS, params)
    params["hour_end"] = (task_filter.created_after // HOUR + 1) * HOUR
    conditions = {
        **_CONDITIONS,
        "created_after": _CONDITIONS["created_after"] + " and created_at < :hour_end",
    }
    return total + _count(tx, ("part", *names), "select count(*) from tasks where", conditions, params)


def count_by_status(tx: Tx, tenant: str) -> dict[str, int]:
    """Count all tasks that there ever were by their present status; a status without tasks is left out."""
    return {str(status): int(n) for status, n in tx.rows(_COUNT_BY_STATUS, tenant=tenant) if n}


def iter_tenants(tx: Tx) -> Iterator[str]:
    """Yield the tenants that have tasks."""
    return tx.iter_distinct(_NEXT_TENANT)


def count_outcomes(tx: Tx, tenant: str, since: int) -> dict[str, tuple[int, int]]:
    """Return how many of the newest tasks failed and ended since a time (microseconds), by agent id.

    A task that ran longer than its timeout failed too. Tasks that no agent got are under the empty id.
    """
    rows = tx.rows(_COUNT_OUTCOMES, tenant=tenant, since=since)
    return {str(agent_id): (int(failed), int(ended)) for agent_id, failed, ended in rows}


def find_oldest(tx: Tx, tenant: str, status: str) -> tuple[int, int | None]:
    """Return how many tasks have a status, at most MAX_COUNTED, and since when the oldest waits (microseconds).

    Without those that wait for a slot of their limit.
    """
    count, since = tx.rows(_OLDEST, tenant=tenant, status=status)[0]
    return int(count), None if since is None else int(since)


def count_running(tx: Tx, tenant: str, agent_id: str) -> int:
    """Return how many tasks of an agent are executing or waiting."""
    return int(tx.rows(_COUNT_RUNNING, tenant=tenant, agent_id=agent_id)[0][0])


def count_open(tx: Tx, tenant: str, agent_id: str) -> int:
    """Return how many tasks of an agent have not ended."""
    return int(tx.rows(_COUNT_OPEN, tenant=tenant, agent_id=agent_id)[0][0])


def is_executing(tx: Tx, tenant: str, agent_id: str) -> bool:
    """Return whether an agent executes a task."""
    return bool(tx.rows(_IS_EXECUTING, tenant=tenant, agent_id=agent_id))


def find_executing(tx: Tx, tasks: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return those of the tasks, tenant and id, that are executing."""
    return {(str(tenant), str(task_id)) for tenant, task_id in tx.rows_for(_LIST_EXECUTING, sorted(tasks))}


def list_by_reference(tx: Tx, tenant: str, task_filter: TaskFilter, limit: int) -> list[TaskSummary]:
    """List the tasks that `ref` refers to (`ids.matches_part`), the exact one first, then the newest.

    Parts of ids are searched in the newest REFERENCE_TASKS tasks, whose ids one index has together.
    """
    text = task_filter.ref or ""
    params = {"text": text, "length": len(text), "key": task_filter.key, "scanned": REFERENCE_TASKS, "limit": limit}
    return [TaskSummary(*row) for row in tx.rows(_LIST_BY_REFERENCE, tenant=tenant, **params)]


def list_subtasks(tx: Tx, tenant: str, task_filter: TaskFilter, limit: int) -> list[TaskSummary]:
    """List the tasks of a parent, oldest first."""
    after_time, after_id = task_filter.before or (-1, "")
    params = {"parent": task_filter.parent, "key": task_filter.key, "after_time": after_time, "after_id": after_id}
    return [TaskSummary(*row) for row in tx.rows(_LIST_SUBTASKS, tenant=tenant, limit=limit, **params)]


def count_subtasks(tx: Tx, tenant: str, task_filter: TaskFilter) -> int:
    """Count the tasks of a parent, at most MAX_TOTAL."""
    params = {"parent": task_filter.parent, "key": task_filter.key}
    return int(tx.rows(_COUNT_SUBTASKS, tenant=tenant, **params)[0][0])


def read_input(tx: Tx, tenant: str, task_id: str, length: int) -> str | None:
    """Return the first characters of the JSON input of a task."""
    row = tx.row(_FIND_INPUT, tenant=tenant, task_id=task_id, length=length)
    return None if row is None else str(row[0])


def has_grade(tx: Tx, tenant: str) -> bool:
    """Return whether a task of the tenant was ever graded."""
    return tx.row(_HAS_GRADE, tenant=tenant) is not None


def read_whole_input(tx: Tx, tenant: str, task_id: str) -> Any:
    """Return the input of a task. Raises NotFound."""
    row = tx.row(_WHOLE_INPUT, tenant=tenant, task_id=task_id)
    if row is None:
        raise NotFound("No task has this id.")
    return jsontext.decode(row[0].encode())


def _count(tx: Tx, key: tuple[str, ...], head: str, conditions: dict[str, str], params: dict[str, Any]) -> int:
    """Run a counting statement; `key` is the kind of the statement and then the names of its conditions."""
    sql = _statements.get(key)
    if sql is None:
        sql = _statements[key] = Sql(" and ".join([f"{head} tenant = :tenant", *(conditions[n] for n in key[1:])]))
    row = tx.row(sql, **params)
    return int(row[0]) if row else 0


def _find_rarest(tx: Tx, tenant: str, task_filter: TaskFilter) -> str:
    """Return the condition that the fewest tasks fulfil, whose index finds them fastest; "" without a condition."""
    names = [name for name in _RANKED if getattr(task_filter, name) is not None]
    # There is an index of agent and status together.
    if len(names) < 2 or names == ["agent_id", "status"]:
        return names[0] if names else ""
    params = _params(tenant, task_filter)
    head = f"select coalesce(sum(n), 0) from task_counts where hour = {ALL_HOURS} and"

    def count(name: str) -> int:
        if name == "status":
            return _count(tx, ("ever", "status"), head, _COUNT_CONDITIONS, params)
        if name == "agent_id":
            both = ("status", name) if "status" in names else (name,)
            return _count(tx, ("ever", *both), head, _COUNT_CONDITIONS, params)
        return int(tx.rows(_COUNT_COMPARED[name], **params)[0][0])

    return min(names, key=count)


def _where(rarest: str, names: Iterable[str]) -> tuple[str, list[str]]:
    """Return the conditions that use the index of the rarest one, and the others, as expressions, which use none.

    SQLite knows nothing of the values, and would choose an index by the number of its columns.
    """
    indexed, others = ["tenant = :tenant"], []
    for name in names:
        if name not in _RANKED or name == rarest or (name, rarest) == ("status", "agent_id"):
            indexed.append(_CONDITIONS[name])
        else:
            others.append(_CONDITIONS[name].replace(" =", " || '' ="))
    return " and ".join(indexed), others


def _page_sql(rarest: str, *names: str) -> Sql:
    indexed, others = _where(rarest, names)
    where = " and ".join([indexed, *others])
    return Sql(f"select {_COLUMNS} from tasks where {where} {_NEWEST_FIRST} :limit offset :offset")


def _own_page_sql(names: tuple[str, ...]) -> Sql:
    """Return the statement for the tasks of one key: a union, because each part has an index and an `or` has none."""
    where = " and ".join(["tenant = :tenant", *(_CONDITIONS[name] for name in names)])
    newest = "order by created_at desc, task_id desc limit"
    parts = [
        f"select * from (select {_COLUMNS} from tasks where {condition} and {where} {newest} :most) as part{number}"
        for number, condition in enumerate((SUBMITTED, ASSIGNED))
    ]
    return Sql(f"select {_COLUMNS} from ({' union '.join(parts)}) as own {newest} :limit offset :offset")


def _count_some(tx: Tx, tenant: str, task_filter: TaskFilter) -> tuple[int, bool]:
    names = tuple(name for name in _CONDITIONS if name != "before" and getattr(task_filter, name) is not None)
    key = ("some", _find_rarest(tx, tenant, task_filter), *names)
    sql = _statements.get(key) or _statements.setdefault(key, _count_some_sql(*key[1:]))
    looked_at, matching = tx.rows(sql, **_params(tenant, task_filter))[0]
    return int(matching), looked_at < MAX_TOTAL


def _count_some_sql(rarest: str, *names: str) -> Sql:
    indexed, others = _where(rarest, names)
    # Without other conditions the index has all that is needed.
    columns = f"created_at, {_RANKED_COLUMNS}" if others else "created_at"
    return Sql(
        f"""select count(*), coalesce(sum(case when {" and ".join(others) or "1 = 1"} then 1 else 0 end), 0)
        from (select {columns} from tasks where {indexed} {_NEWEST_FIRST} {MAX_TOTAL}) as newest"""
    )


def list_matching(tx: Tx, tenant: str, task_filter: TaskFilter, ids: Sequence[str]) -> list[TaskSummary]:
    """Return those of at most IDS_PER_STATEMENT tasks that exist and match the filter, in any order."""
    params = _params(tenant, task_filter) | _id_params(ids)
    return [TaskSummary(*row) for row in tx.rows(_LIST_MATCHING, key=task_filter.key, **params)]


def read_texts(tx: Tx, tasks: Iterable[tuple[str, str]]) -> list[TaskText]:
    """Return what the search knows of tasks, given as (tenant, task id) and sorted, in any order."""
    texts = []
    for tenant, group in groupby(tasks, key=itemgetter(0)):
        ids = [task_id for _, task_id in group]
        for start in range(0, len(ids), IDS_PER_STATEMENT):
            rows = tx.rows(_READ_TEXTS, tenant=tenant, **_id_params(ids[start : start + IDS_PER_STATEMENT]))
            texts += [TaskText(tenant, str(task_id), _join_texts(parts)) for task_id, *parts in rows]
    return texts


def _join_texts(parts: Iterable[str | None]) -> str:
    """Return the texts together, without JSON's escapes, whose letters would join the words after them."""
    text = " ".join(part for part in parts if part)
    return _ESCAPE.sub(" ", text) if "\\" in text else text


def _id_params(ids: Sequence[str]) -> dict[str, Any]:
    # The last id fills the parameters that are left over.
    return {f"id_{n}": ids[min(n, len(ids) - 1)] for n in range(IDS_PER_STATEMENT)}


def list_types(tx: Tx, tenant: str) -> list[str]:
    """Return the types of all tasks, in their order."""
    return list(islice(tx.iter_distinct(_NEXT_VALUE["type"], tenant=tenant), MAX_CHOICES))


def list_submitters(tx: Tx, tenant: str) -> list[str]:
    """Return the names of the keys that submitted tasks, in their order."""
    return list(islice(tx.iter_distinct(_NEXT_VALUE["submitted_by"], tenant=tenant), MAX_CHOICES))


def _count_own_tasks(tx: Tx, tenant: str, task_filter: TaskFilter) -> int:
    names = tuple(name for name in _CONDITIONS if name != "before" and getattr(task_filter, name) is not None)
    params = _params(tenant, task_filter) | {"key": task_filter.key}
    head = "select count(*) from tasks where"
    submitted = _count(tx, ("submitted", *names), f"{head} {SUBMITTED} and", _CONDITIONS, params)
    # Excludes the submitted ones, or a task that a key sent to its own agent would count twice.
    assigned = f"{head} {ASSIGNED} and submitted_by <> :key and"
    return submitted + _count(tx, ("assigned", *names), assigned, _CONDITIONS, params)


def _params(tenant: str, task_filter: TaskFilter) -> dict[str, Any]:
    before_time, before_id = task_filter.before or (0, "")
    after = task_filter.created_after or 0
    return {
        "tenant": tenant,
        "status": task_filter.status,
        "agent_id": task_filter.agent_id,
        "type": task_filter.type,
        "submitted_by": task_filter.submitted_by,
        "session": task_filter.session,
        "created_after": after,
        # At least ALL_HOURS, so that the row of the total is never added to those of the hours.
        "hour": max(ALL_HOURS, after // HOUR),
        "before_time": before_time,
        "before_id": before_id,
    }
