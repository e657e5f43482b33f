"""SQL of the people who sign in with a provider."""

from __future__ import annotations

from typing import Any

import msgspec

from stentor.core import jsontext
from stentor.core.db import Sql, Tx
from stentor.core.db.sql import Params
from stentor.domains.people.model import Person, PersonSession

_FIELDS = Person.__struct_fields__
_COLUMNS = ", ".join(_FIELDS)
_BY_NAME = Sql(f"select {_COLUMNS} from people where name = :name")
_BY_SUBJECT = Sql(f"select {_COLUMNS} from people where issuer = :issuer and subject = :subject")
_OF_TENANT = Sql(f"select {_COLUMNS} from people where tenant = :tenant order by name")
_CHANGED = Sql(f"select {_COLUMNS} from people where updated_at >= :since")
_INSERT = Sql.insert("people", _FIELDS)
_CHANGEABLE = tuple(name for name in _FIELDS if name not in ("name", "created_at"))
_UPDATE = Sql(f"update people set {', '.join(f'{name} = :{name}' for name in _CHANGEABLE)} where name = :name")


def find(tx: Tx, name: str) -> Person | None:
    """Return the person of this name of any tenant: names are unique in an installation."""
    row = tx.row(_BY_NAME, name=name)
    return _person(row) if row else None


def find_subject(tx: Tx, issuer: str, subject: str) -> Person | None:
    """Return the person whom a provider knows under its own id."""
    row = tx.row(_BY_SUBJECT, issuer=issuer, subject=subject)
    return _person(row) if row else None


def list_people(tx: Tx, tenant: str) -> list[Person]:
    """Return the people of a tenant by name."""
    return [_person(row) for row in tx.rows(_OF_TENANT, tenant=tenant)]


def changed_since(tx: Tx, since: int) -> list[Person]:
    """Return the people of all tenants that changed since a time in microseconds."""
    return [_person(row) for row in tx.rows(_CHANGED, since=since)]


def insert(tx: Tx, person: Person) -> None:
    tx.run(_INSERT, **_row(person))


def update(tx: Tx, person: Person) -> None:
    row = _row(person)
    tx.run(_UPDATE, name=person.name, **{name: row[name] for name in _CHANGEABLE})


def _row(person: Person) -> Params:
    row = {name: getattr(person, name) for name in _FIELDS}
    sessions = [msgspec.to_builtins(session) for session in person.sessions]
    member_of = None if person.member_of is None else jsontext.dump(person.member_of)
    permissions = jsontext.dump(person.permissions)
    return row | {"permissions": permissions, "sessions": jsontext.dump(sessions), "member_of": member_of}


def _person(row: tuple[Any, ...]) -> Person:
    values = dict(zip(_FIELDS, row, strict=True))
    values["permissions"] = msgspec.json.decode(values["permissions"], type=tuple[str, ...])
    values["sessions"] = msgspec.json.decode(values["sessions"], type=tuple[PersonSession, ...])
    if values["member_of"] is not None:
        values["member_of"] = msgspec.json.decode(values["member_of"], type=tuple[str, ...])
    return Person(**values)
