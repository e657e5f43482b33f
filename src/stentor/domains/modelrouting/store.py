"""SQL of model routing: the track record of each model at each kind of request, and the answers that may be graded."""

from __future__ import annotations

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.jsontext import JsonObject
from stentor.domains.learning.model import Weight
from stentor.domains.modelrouting.model import AutoAnswer

_FIELDS = tuple(name for name in Weight.__struct_fields__ if name != "lengths")  # of inputs of tasks only
_COLUMNS = tuple({"agent_id": "model", "task_type": "kind"}.get(name, name) for name in _FIELDS)
_WEIGHT_COLUMNS = ", ".join(_COLUMNS)
_ONE = Sql(f"select {_WEIGHT_COLUMNS} from model_weights where tenant = :tenant and model = :model and kind = :kind")
_CHANGED = Sql(f"select {_WEIGHT_COLUMNS}, tenant from model_weights where updated_at >= :since")
_UPSERT = Sql.insert("model_weights", ("tenant", *_COLUMNS), key=("tenant", "model", "kind"))
_ANSWER_FIELDS = AutoAnswer.__struct_fields__
_ANSWER_COLUMNS = ", ".join(_ANSWER_FIELDS)
_FIND = Sql(f"select {_ANSWER_COLUMNS} from model_answers where tenant = :tenant and answer_id = :answer_id")
_INSERT = Sql.insert("model_answers", ("tenant", *_ANSWER_FIELDS))
_GRADE = Sql(
    """update model_answers set grade = :grade, comment = :comment, graded_by = :graded_by, graded_at = :graded_at
    where tenant = :tenant and answer_id = :answer_id"""
)
_DELETE_BEFORE = Sql("delete from model_answers where answered_at < :before")
# The decision is stored once, in its event.
_DECISION = Sql("select metadata from events where event_id = :event_id and tenant = :tenant")


def find_weight(tx: Tx, tenant: str, model: str, kind: str) -> Weight | None:
    row = tx.row(_ONE, tenant=tenant, model=model, kind=kind)
    return Weight(*row) if row else None


def weights_changed_since(tx: Tx, since: int) -> list[tuple[str, Weight]]:
    """Return the weights that changed since a time in microseconds, each with its tenant."""
    return [(row[-1], Weight(*row[:-1])) for row in tx.rows(_CHANGED, since=since)]


def upsert_weight(tx: Tx, tenant: str, weight: Weight) -> None:
    values = dict(zip(_COLUMNS, (getattr(weight, name) for name in _FIELDS), strict=True))
    tx.run(_UPSERT, tenant=tenant, **values)


def find_answer(tx: Tx, tenant: str, answer_id: str) -> AutoAnswer | None:
    row = tx.row(_FIND, tenant=tenant, answer_id=answer_id)
    return AutoAnswer(*row) if row else None


def insert_answer(tx: Tx, tenant: str, answer: AutoAnswer) -> None:
    tx.run(_INSERT, tenant=tenant, **msgspec.structs.asdict(answer))


def store_grade(tx: Tx, tenant: str, answer: AutoAnswer) -> None:
    values = {name: getattr(answer, name) for name in ("answer_id", "grade", "comment", "graded_by", "graded_at")}
    tx.run(_GRADE, tenant=tenant, **values)


def delete_answers_before(tx: Tx, before: int) -> int:
    """Delete the answers from before a time in microseconds. Return how many."""
    return tx.run(_DELETE_BEFORE, before=before)


def read_event_metadata(tx: Tx, tenant: str, event_id: str) -> JsonObject | None:
    """Return the metadata of an event of the run log."""
    row = tx.row(_DECISION, tenant=tenant, event_id=event_id)
    return dict(jsontext.load(row[0])) if row else None
