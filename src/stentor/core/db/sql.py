"""SQL as named text, in the subset that SQLite 3.40 and PostgreSQL share."""

from __future__ import annotations

import re

_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")


class Sql:
    """One statement with `:name` parameters, translated once for the driver that wants `%(name)s`."""

    __slots__ = ("pyformat", "text", "writes")

    def __init__(self, text: str) -> None:
        self.text = " ".join(text.split())
        self.writes = not self.text.startswith("select ")
        self.pyformat = _PARAMETER.sub(r"%(\1)s", self.text.replace("%", "%%"))

    def __repr__(self) -> str:
        return f"Sql({self.text!r})"


def values_rows(columns: tuple[str, ...], count: int) -> str:
    """`(:a_0, :b_0), (:a_1, :b_1)`: the rows of a multi-row insert."""
    return ", ".join("(" + ", ".join(f":{c}_{i}" for c in columns) + ")" for i in range(count))
