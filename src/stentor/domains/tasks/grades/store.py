"""SQL of grades: one for each task."""

from __future__ import annotations

import msgspec

from stentor.core.db import Sql, Tx
from stentor.domains.tasks.grades.model import Grade

_FIELDS = Grade.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_ONE = Sql(f"select {_COLUMNS} from task_grades where tenant = :tenant and task_id = :task_id")
_INSERT = Sql(
    f"insert into task_grades (tenant, {_COLUMNS}) values (:tenant, {', '.join(':' + name for name in _FIELDS)})"
)


def find(tx: Tx, tenant: str, task_id: str) -> Grade | None:
    row = tx.row(_ONE, tenant=tenant, task_id=task_id)
    if row is None:
        return None
    values = dict(zip(_FIELDS, row, strict=True))
    return Grade(**values | {"learned": bool(values["learned"])})


def insert(tx: Tx, tenant: str, grade: Grade) -> None:
    tx.run(_INSERT, **(msgspec.structs.asdict(grade) | {"tenant": tenant, "learned": int(grade.learned)}))
