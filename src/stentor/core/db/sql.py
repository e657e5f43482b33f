"""SQL as named text, in the subset that SQLite 3.40 and PostgreSQL share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")
_TABLE = re.compile(r"\b(?:from|join|into|update) ([a-z_]+)")


class Sql:
    """One statement with `:name` parameters, translated once for the drivers: `?` or `%(name)s`.

    `tables` are those that it names, `writes` whether it may change one.
    """

    __slots__ = ("_pick", "pyformat", "qmark", "tables", "text", "writes")

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        self.writes = not self.text.startswith("select ")
        self.tables = frozenset(_TABLE.findall(self.text))
        self.pyformat = _PARAMETER.sub(r"%(\1)s", self.text.replace("%", "%%"))
        self.qmark = _PARAMETER.sub("?", self.text)
        self._pick = _picker(_PARAMETER.findall(self.text))

    def values(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        """The parameters in the order of the question marks. Raises KeyError for one that is missing."""
        return self._pick(params)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"Sql({self.text!r})"


def _picker(names: list[str]) -> Any:
    if len(names) > 1:
        return itemgetter(*names)
    return lambda params: tuple(params[name] for name in names)
