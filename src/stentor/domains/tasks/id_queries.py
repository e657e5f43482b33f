"""Reads many tasks by their ids: their rows of the task list, and the texts by which they are found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from stentor.core.db import Sql, Tx
from stentor.domains.tasks.list_model import TaskFilter, TaskSummary
from stentor.domains.tasks.list_queries import COLUMNS, filter_params
from stentor.domains.tasks.search.model import TaskText
from stentor.domains.tasks.visibility_queries import VISIBLE

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
_READ_TEXTS = Sql(
    f"""select task_id, title, type, substr(input, 1, {MAX_SEARCHED}), substr(result, 1, {MAX_SEARCHED}),
    substr(error, 1, {MAX_SEARCHED}) from tasks where tenant = :tenant and task_id in ({_PARAMETERS_OF_IDS})"""
)
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")


def list_matching(tx: Tx, tenant: str, task_filter: TaskFilter, ids: Sequence[str]) -> list[TaskSummary]:
    """Return those of at most IDS_PER_STATEMENT tasks that exist and match the filter, in any order."""
    params = filter_params(tenant, task_filter) | _id_params(ids)
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
