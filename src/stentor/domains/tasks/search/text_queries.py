"""Reads what the search knows of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

from stentor.core.db import Sql, Tx
from stentor.domains.tasks.list_queries import IDS_PER_STATEMENT, PARAMETERS_OF_IDS, id_params
from stentor.domains.tasks.search.model import TaskText

MAX_SEARCHED = 20_000
"""Characters of an input, a result and an error that the search knows."""
_READ_TEXTS = Sql(
    f"""select task_id, title, type, substr(input, 1, {MAX_SEARCHED}), substr(result, 1, {MAX_SEARCHED}),
    substr(error, 1, {MAX_SEARCHED}) from tasks where tenant = :tenant and task_id in ({PARAMETERS_OF_IDS})"""
)
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|.)")


def read_texts(tx: Tx, tasks: Iterable[tuple[str, str]]) -> list[TaskText]:
    """Return what the search knows of tasks, given as (tenant, task id) and sorted, in any order."""
    texts = []
    for tenant, group in groupby(tasks, key=itemgetter(0)):
        ids = [task_id for _, task_id in group]
        for start in range(0, len(ids), IDS_PER_STATEMENT):
            rows = tx.rows(_READ_TEXTS, tenant=tenant, **id_params(ids[start : start + IDS_PER_STATEMENT]))
            texts += [TaskText(tenant, str(task_id), _join_texts(parts)) for task_id, *parts in rows]
    return texts


def _join_texts(parts: Iterable[str | None]) -> str:
    """Return the texts together, without JSON's escapes, whose letters would join the words after them."""
    text = " ".join(part for part in parts if part)
    return _ESCAPE.sub(" ", text) if "\\" in text else text
