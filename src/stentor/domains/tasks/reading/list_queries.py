"""Pages of the task list and their totals; `own_list_queries` has those of a key that sees only its own tasks.

Counts are maintained per status and agent, for each hour and in total, so that no list scans the table of tasks.

Also many tasks by their ids: their rows of the list, and the texts by which they are found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from stentor.core.clock import HOUR
from stentor.core.db import RowsSql, Sql, Tx
from stentor.core.db.sql import Params
from stentor.core.ids import LAST_GROUP_START, UUID_LENGTH
from stentor.domains.tasks.queries import ALL_HOURS
from stentor.domains.tasks.reading.list_model import TaskFilter, TaskSummary
from stentor.domains.tasks.reading.visibility_queries import ASSIGNED, OWN_AGENTS, VISIBLE
from stentor.domains.tasks.search.model import TaskText

MAX_TOTAL = 10_000
"""Tasks that are looked at, the newest first, to count those of a list with a condition that no counts are kept for."""
MAX_COMPARED = 50_000
"""Tasks that are counted to learn which of several conditions the fewest tasks fulfil."""
REFERENCE_TASKS = 50_000
"""Tasks, the newest, whose ids are searched for a part of an id."""
CONDITIONS = {
    "status": "status = :status",
    "agent_id": "assigned_agent = :agent_id",
    "type": "type = :type",
    "submitted_by": "submitted_by = :submitted_by",
    "session": "session_id = :session",
    "created_after": "created_at > :created_after",
    "before": "(created_at, task_id) < (:before_time, :before_id)",
    "own_agents": ASSIGNED,
}
"""The conditions of a filter, and that the task is one of the agents of `:key`."""
_RANKED = ("session", "submitted_by", "agent_id", "own_agents", "type", "status")
"""Conditions that have an index."""
_AGENTS = ("agent_id", "own_agents")
RANKED_COLUMNS = "session_id, submitted_by, assigned_agent, type, status"
NEWEST_FIRST = "order by created_at desc, task_id desc limit"
_COUNT_CONDITIONS = {
    "status": "status = :status",
    "agent_id": "agent_id = :agent_id",
    "own_agents": f"agent_id in ({OWN_AGENTS})",
    "created_after": "hour > :hour",
}
COLUMNS = (
    "task_id, status, assigned_agent, type, created_at, completion_time, start_time, coalesce(title, type) as title, "
    "epoch, first_started_at"
)
_NEWEST_IDS = """select task_id from tasks where tenant = :tenant order by created_at desc, task_id desc
    limit :scanned"""
_LIST_BY_REFERENCE = Sql(
    f"""select {COLUMNS} from tasks where tenant = :tenant and task_id in (
        select cast(:text as text) union all
        select task_id from ({_NEWEST_IDS}) as newest where replace(task_id, :text, '') <> task_id
            and (substr(task_id, 1, :length) = :text or substr(task_id, length(task_id) - :length + 1) = :text
                or (length(task_id) = {UUID_LENGTH} and substr(task_id, {LAST_GROUP_START}, :length) = :text)))
        and {VISIBLE}
    order by case when task_id = :text then 0 else 1 end, created_at desc, task_id desc limit :limit"""
)
_IS_SUBTASK = f"tenant = :tenant and parent_task_id = :parent and {VISIBLE}"
_LIST_SUBTASKS = Sql(
    f"""select {COLUMNS} from tasks where {_IS_SUBTASK} and (created_at, task_id) > (:after_time, :after_id)
    order by created_at, task_id limit :limit"""
)
_COUNT_SUBTASKS = Sql(f"select count(*) from (select 1 from tasks where {_IS_SUBTASK} limit {MAX_TOTAL}) as counted")
_COUNT_COMPARED = {
    name: Sql(
        f"""select count(*) from (
            select 1 from tasks where tenant = :tenant and {CONDITIONS[name]} limit :most) as compared"""
    )
    for name in ("type", "submitted_by", "session")
}
_statements: dict[tuple[str, ...], Sql] = {}
"""Compiled statements by kind and conditions; there are only a few combinations."""
IDS_PER_STATEMENT = 200
"""Ids in one statement; a fixed number, so that the SQL text is always the same."""
MAX_SEARCHED = 20_000
"""Characters of an input, a result and an error that the search knows."""
_PARAMETERS_OF_IDS = ", ".join(f":id_{n}" for n in range(IDS_PER_STATEMENT))
# With `+` SQLite does not look for these tasks by their time.
_LIST_MATCHING = Sql(
    f"""select {COLUMNS} from tasks where tenant = :tenant and task_id in ({_PARAMETERS_OF_IDS})
    and (cast(:status as text) is null or status = :status)
    and (cast(:agent_id as text) is null or assigned_agent = :agent_id)
    and (cast(:type as text) is null or type = :type)
    and (cast(:submitted_by as text) is null or submitted_by = :submitted_by)
    and (cast(:session as text) is null or session_id = :session)
    and +created_at > :created_after and {VISIBLE}"""
)
_TEXT = " || ".join(
    f"coalesce({part} || ' ', '')"
    for part in ("title", "type", *(f"substr({name}, 1, {MAX_SEARCHED})" for name in ("input", "result", "error")))
)
# Not a join: for a table without statistics, as after a restore, PostgreSQL would read all tasks of the tenant.
_READ_TEXTS = RowsSql(
    ("tenant", "task_id"),
    f"""select tenant, task_id, (select {_TEXT} from tasks
        where tasks.tenant = given.tenant and tasks.task_id = given.task_id limit 1) from given""",
)
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")


def read_page(tx: Tx, tenant: str, task_filter: TaskFilter, limit: int, offset: int) -> list[TaskSummary]:
    """List the matching tasks, newest first."""
    names, params = condition_names(task_filter), filter_params(tenant, task_filter)
    key = (find_rarest(tx, names, params), *names)
    sql = statement(("page", *key), lambda: page_sql(*key))
    return [TaskSummary(*row) for row in tx.rows(sql, **params, limit=limit, offset=offset)]


def count_matching(tx: Tx, tenant: str, task_filter: TaskFilter) -> tuple[int, bool]:
    """Return how many tasks match on all pages, and whether all of them are counted."""
    names, params = condition_names(task_filter, "before"), filter_params(tenant, task_filter)
    if are_counted(names):
        return count_kept(tx, names, params), True
    key = (find_rarest(tx, names, params), *names)
    return count_some(tx, statement(("some", *key), lambda: count_some_sql(*key)), params)


def count_tasks(tx: Tx, tenant: str, task_filter: TaskFilter) -> int:
    """Count the tasks with a status, of an agent or since a time."""
    return count_kept(tx, condition_names(task_filter, "before"), filter_params(tenant, task_filter))


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


def _count(tx: Tx, key: tuple[str, ...], head: str, conditions: dict[str, str], params: Params) -> int:
    """Run a counting statement; `key` is the kind of the statement and then the names of its conditions."""
    sql = statement(key, lambda: Sql(" and ".join([f"{head} tenant = :tenant", *(conditions[n] for n in key[1:])])))
    return int(tx.rows(sql, **params)[0][0])


def condition_names(task_filter: TaskFilter, *without: str) -> tuple[str, ...]:
    """Return the names of the conditions that a filter has."""
    return tuple(name for name in CONDITIONS if name not in without and getattr(task_filter, name, None) is not None)


def are_counted(names: Sequence[str]) -> bool:
    """Return whether counts are kept for these conditions together."""
    return all(name in _COUNT_CONDITIONS for name in names)


def count_kept(tx: Tx, names: Sequence[str], params: Params) -> int:
    """Count the tasks that fulfil conditions that counts are kept for.

    Whole hours come from the counts, the first partial hour from the index.
    """
    head = "select coalesce(sum(n), 0) from task_counts"
    if "created_after" not in names:
        return _count(tx, ("ever", *names), f"{head} where hour = {ALL_HOURS} and", _COUNT_CONDITIONS, params)
    total = _count(tx, ("hours", *names), f"{head} where", _COUNT_CONDITIONS, params)
    params = {**params, "hour_end": (params["created_after"] // HOUR + 1) * HOUR}
    conditions = {**CONDITIONS, "created_after": CONDITIONS["created_after"] + " and created_at < :hour_end"}
    return total + _count(tx, ("part", *names), "select count(*) from tasks where", conditions, params)


def find_rarest(tx: Tx, names: Sequence[str], params: Params) -> str:
    """Return the condition that the fewest tasks fulfil, whose index finds them fastest; "" without a condition."""
    ranked = [name for name in _RANKED if name in names]
    # There is an index of agent and status together.
    if len(ranked) < 2 or (len(ranked) == 2 and ranked[0] in _AGENTS and ranked[1] == "status"):
        return ranked[0] if ranked else ""

    rarest, fewest = "", MAX_COMPARED
    for name in sorted(ranked, key=lambda name: name not in _COUNT_CONDITIONS):
        if name in _COUNT_CONDITIONS:
            together = ("status", name) if name in _AGENTS and "status" in names else (name,)
            count = count_kept(tx, together, params)
        else:
            # Counts only far enough to see that it is not rarer.
            most = min(fewest, MAX_COMPARED)
            count = int(tx.rows(_COUNT_COMPARED[name], **params, most=most)[0][0])
        if not rarest or count < fewest:
            rarest, fewest = name, count
    return rarest


def split_conditions(rarest: str, *names: str) -> tuple[list[str], list[str]]:
    """Return the conditions that use the index of the rarest one, and the others, as expressions, which use none.

    SQLite knows nothing of the values, and would choose an index by the number of its columns.
    """
    indexed, others = ["tenant = :tenant"], []
    for name in names:
        if name not in _RANKED or name == rarest or (name == "status" and rarest in _AGENTS):
            indexed.append(CONDITIONS[name])
        else:
            others.append(CONDITIONS[name].replace(" ", " || '' ", 1))
    return indexed, others


def page_sql(rarest: str, *names: str) -> Sql:
    """Return the statement for a page of the tasks that fulfil conditions."""
    indexed, others = split_conditions(rarest, *names)
    where = " and ".join(indexed + others)
    return Sql(f"select {COLUMNS} from tasks where {where} {NEWEST_FIRST} :limit offset :offset")


def count_some_sql(rarest: str, *names: str) -> Sql:
    """Return the statement that counts the tasks that fulfil conditions, for `count_some`."""
    indexed, others = split_conditions(rarest, *names)
    return count_sql(newest_sql(indexed, others), others)


def newest_sql(indexed: Sequence[str], others: Sequence[str]) -> str:
    """Return the SELECT of the tasks that `count_some` looks at, with the columns of the other conditions."""
    # Without other conditions the index has all that is needed.
    columns = f"created_at, {RANKED_COLUMNS}" if others else "created_at"
    return f"select {columns} from tasks where {' and '.join(indexed)} {NEWEST_FIRST} {MAX_TOTAL}"


def count_sql(newest: str, conditions: Sequence[str]) -> Sql:
    """Return a statement that counts the rows of a SELECT, and those of them that fulfil conditions."""
    return Sql(
        f"""select count(*), coalesce(sum(case when {" and ".join(conditions) or "1 = 1"} then 1 else 0 end), 0)
        from ({newest}) as newest"""
    )


def count_some(tx: Tx, sql: Sql, params: Params) -> tuple[int, bool]:
    """Count among the newest MAX_TOTAL tasks; return the number and whether there are no more tasks to look at."""
    looked_at, matching = tx.rows(sql, **params)[0]
    return int(matching), looked_at < MAX_TOTAL


def statement(key: tuple[str, ...], build: Callable[[], Sql]) -> Sql:
    """Return the statement of a kind and its conditions, built once."""
    return _statements.get(key) or _statements.setdefault(key, build())


def filter_params(tenant: str, task_filter: TaskFilter) -> dict[str, Any]:
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


def list_matching(tx: Tx, tenant: str, task_filter: TaskFilter, ids: Sequence[str]) -> list[TaskSummary]:
    """Return those of at most IDS_PER_STATEMENT tasks that exist and match the filter, in any order."""
    params = filter_params(tenant, task_filter) | _id_params(ids)
    return [TaskSummary(*row) for row in tx.rows(_LIST_MATCHING, key=task_filter.key, **params)]


def read_texts(tx: Tx, tasks: Sequence[tuple[str, str]]) -> list[TaskText]:
    """Return what the search knows of tasks, given as (tenant, task id), in any order."""
    return [
        # Without JSON's escapes, whose letters would join the words after them.
        TaskText(tenant, task_id, _ESCAPE.sub(" ", text) if "\\" in text else text)
        for sql, values in _READ_TEXTS.padded_chunks(tasks)
        for tenant, task_id, text in tx.rows(sql, **values)
        if text is not None
    ]


def _id_params(ids: Sequence[str]) -> dict[str, Any]:
    # The last id fills the parameters that are left over.
    return {f"id_{n}": ids[min(n, len(ids) - 1)] for n in range(IDS_PER_STATEMENT)}
