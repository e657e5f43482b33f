"""On SQLite, the result and the input of a task are the last columns of its row.

SQLite keeps a long row in a chain of pages and must follow it to each column behind a long text: a list of 100 tasks
with inputs of 100 kB read 10 MB for their titles. PostgreSQL stores long texts outside of the row.
"""

import re

from alembic import op

revision = "0049"
down_revision = "0048"

TEXTS = re.compile(r"    input text not null,\n    result text, (.*?),\n    primary key ", re.DOTALL)


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        return
    run = connection.exec_driver_sql
    (table,) = run("select sql from sqlite_schema where type = 'table' and name = 'tasks'").one()
    depending = run(
        "select sql from sqlite_schema where tbl_name = 'tasks' and type <> 'table' and sql is not null order by rowid"
    ).all()
    names = ", ".join(name for (name,) in run("select name from pragma_table_info('tasks')").all())
    run("alter table tasks rename to tasks_before")
    run(TEXTS.sub(r"    \1,\n    result text,\n    input text not null,\n    primary key ", table))
    run(f"insert into tasks ({names}) select {names} from tasks_before order by rowid")  # noqa: S608
    run("drop table tasks_before")
    for (text,) in depending:
        run(text)
