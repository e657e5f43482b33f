"""SQL of the inbox: which notes were asked, and which wait for their answers."""

from __future__ import annotations

from stentor.core.db import Sql, Tx
from stentor.domains.tasknotes.request import Asked

_FIELDS = Asked.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_ALL = Sql(f"select {_COLUMNS} from inbox_notes where tenant = :tenant")  # noqa: S608 - names of ours
_OPEN = Sql(
    f"""select {_COLUMNS} from inbox_notes where tenant = :tenant and state = 'asked' and (problem is not null
        or exists (select 1 from tasks where tasks.tenant = inbox_notes.tenant
            and tasks.task_id = inbox_notes.task_id
            and status in ('completed', 'failed', 'aborted', 'cancelled')))
    order by path limit :limit"""  # noqa: S608 - names of ours
)
_PUT = Sql(
    f"""insert into inbox_notes (tenant, {_COLUMNS}, updated_at)
    values (:tenant, {", ".join(f":{name}" for name in _FIELDS)}, :now)
    on conflict (tenant, path) do update set {", ".join(f"{name} = excluded.{name}" for name in _FIELDS[1:])},
        updated_at = excluded.updated_at"""  # noqa: S608 - names of ours
)


def all_asked(tx: Tx, tenant: str) -> dict[str, Asked]:
    """By path."""
    return {str(row[0]): Asked(*row) for row in tx.rows(_ALL, tenant=tenant)}


def answerable(tx: Tx, tenant: str, limit: int) -> list[Asked]:
    """Notes whose tasks are over, or that cannot become one, and that have no answer yet."""
    return [Asked(*row) for row in tx.rows(_OPEN, tenant=tenant, limit=limit)]


def put(tx: Tx, tenant: str, asked: Asked) -> None:
    values = {name: getattr(asked, name) for name in _FIELDS}
    tx.run(_PUT, tenant=tenant, now=tx.now, **values)
