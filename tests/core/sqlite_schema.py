"""Write the script that new SQLite files get their schema from: `python -m tests.core.sqlite_schema`."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.migrations import SQLITE_SCHEMA, runner

_STATEMENTS = """
    select sql from sqlite_master
    where sql is not null and name not like 'sqlite\\_%' escape '\\'
      and name not in (select name from pragma_table_list where type = 'shadow')
    order by rowid
"""
_VERSION_ROW = "select 'insert into alembic_version values (' || quote(version_num) || ')' from alembic_version"


def render(path: Path) -> str:
    """The script that creates the schema of the file, and its row with the version."""
    with closing(sqlite3.connect(path)) as connection:
        # A virtual table creates its shadow tables itself.
        return "".join(f"{text};\n" for query in (_STATEMENTS, _VERSION_ROW) for (text,) in connection.execute(query))


def migrate(path: Path) -> SqliteDriver:
    """A new file that all migrations went through."""
    driver = SqliteDriver(path)
    runner.run(driver, None, None, lambda text: None)
    return driver


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        SQLITE_SCHEMA.write_text(render(migrate(Path(folder) / "stentor.db").path), encoding="utf-8")


if __name__ == "__main__":
    main()
