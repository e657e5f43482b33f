"""SQL statements as every driver takes them.

They are written in the subset that SQLite 3.40 and PostgreSQL share. Statements for many rows are in `rows_sql`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, LiteralString, cast

Params = Mapping[str, Any]
Row = tuple[Any, ...]
Statement = tuple[str, Sequence[Any]]
"""Text with the placeholders `$1` and so on, and its parameters: texts, numbers, bytes and None."""


_WRITING = re.compile(r"\b(?:insert|update|delete)\b")
# Not after another colon: `::text` is a cast.
PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
# Not what follows `do update` and `for update`: no table is named there.
_TABLE = re.compile(r"\b(?:from|join|into|(?<!do )(?<!for )update) ([a-z_]+)")


def as_literal(text: str) -> LiteralString:
    """Return a statement of this program: psycopg's types ask for a literal of the source."""
    return cast("LiteralString", text)


class Sql:
    """One statement with `:name` parameters, translated once into each driver's form: `?` or `$1`.

    `tables` are the tables in the statement, `writes` is whether it may change one.
    """

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        # Conservative: a select in parentheses counts as a write, and a CTE with such a word anywhere.
        is_read = self.text.startswith("select ") or (
            self.text.startswith("with ") and _WRITING.search(self.text) is None
        )
        self.writes = not is_read
        self.tables = frozenset(_TABLE.findall(self.text))
        self.qmark = PARAMETER.sub("?", self.text)
        self.values = _picker(PARAMETER.findall(self.text))
        """Returns the parameters in the order of the question marks. Raises KeyError if one is missing."""

    @classmethod
    def insert(cls, table: str, columns: Iterable[str], key: Sequence[str] = ()) -> Sql:
        """Return the statement that inserts a row; its parameters have the names of the columns.

        With `key`, some of the columns, a row that has the same key gets the other values.
        """
        columns = tuple(columns)
        names = ", ".join(f":{name}" for name in columns)
        text = f"insert into {table} ({', '.join(columns)}) values ({names})"  # noqa: S608 - as in _insert
        if key:
            changes = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in key)
            text += f" on conflict ({', '.join(key)}) do update set {changes}"
        return cls(text)

    # Translated on first use: a process with SQLite does not need them.
    @cached_property
    def numbered(self) -> LiteralString:
        numbers = self.numbers
        return as_literal(PARAMETER.sub(lambda match: f"${numbers[match[1]]}", self.text))

    @cached_property
    def numbered_values(self) -> Callable[[Params], Row]:
        """Returns the parameters in the order of their numbers. Raises KeyError if one is missing."""
        return _picker(self.numbers)

    @property
    def numbers(self) -> dict[str, int]:
        """The names of the parameters, with their numbers from 1 on."""
        return {name: number for number, name in enumerate(dict.fromkeys(PARAMETER.findall(self.text)), 1)}

    def __repr__(self) -> str:
        return f"Sql({self.text!r})"


Read = tuple[Sql, Params]
"""A statement that reads, and its parameters."""


def _picker(names: Iterable[str]) -> Callable[[Params], Row]:
    # Interned, as the names of keyword arguments are: a dictionary then finds the very same text and compares none.
    names = [sys.intern(name) for name in names]
    # itemgetter is the fastest way to a tuple, but returns a bare value for one name.
    if len(names) > 1:
        return itemgetter(*names)
    if names:
        [name] = names
        return lambda params: (params[name],)
    return lambda params: ()
