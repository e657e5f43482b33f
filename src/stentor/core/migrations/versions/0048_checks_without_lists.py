"""On SQLite, no list of three values or more in the constraints of tables and in the triggers for moves.

SQLite fills a temporary index for such an `in` at each statement that writes to the table. Those of tasks took half of
the time in which a task is inserted, and in which its end is written.
"""

import re

from alembic import op
from sqlalchemy.exc import OperationalError

revision = "0048"
down_revision = "0047"

LIST = re.compile(r"\((\w+) in \(([^(),]*(?:,[^(),]*){2,})\)\)")
MOVES = re.compile(r"\(old\.status \|\| '>' \|\| new\.status\) not in \(([^()]*)\)")


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        return
    run = connection.exec_driver_sql
    for name, text in run("select name, sql from sqlite_schema where type = 'trigger'").all():
        if (changed := MOVES.sub(_without_list_of_moves, text)) != text:
            run(f"drop trigger {name}")
            run(changed)
    # As https://www.sqlite.org/lang_altertable.html describes it; otherwise each table would have to be copied.
    run("pragma writable_schema = on")
    try:
        run("update sqlite_schema set sql = sql where false")
    except OperationalError:
        # The SQLite of macOS does not allow it. The lists mean the same, so the tables stay as they are.
        return
    version = run("pragma schema_version").scalar_one()
    for name, text in run("select name, sql from sqlite_schema where type = 'table' and sql is not null").all():
        if (changed := LIST.sub(_without_list, text)) != text:
            run("update sqlite_schema set sql = ? where type = 'table' and name = ?", (changed, name))
    run(f"pragma schema_version = {version + 1}")
    run("pragma writable_schema = off")


def _without_list(found: re.Match[str]) -> str:
    column, values = found.groups()
    return f"({' or '.join(f'{column} = {value.strip()}' for value in values.split(','))})"


def _without_list_of_moves(found: re.Match[str]) -> str:
    moves = " ".join(move.strip().strip("'") for move in found[1].split(","))
    return f"instr(' {moves} ', ' ' || old.status || '>' || new.status || ' ') = 0"
