"""Teams: the team of a key and of a person, and what teams spend. Those made before have no team."""

from typing import Any

from alembic import op

revision = "0059"
down_revision = "0058"

OLD_CHECK, NEW_CHECK = "kind in ('key', 'agent')", "kind in ('key', 'agent', 'team')"


def upgrade() -> None:
    for table in ("api_keys", "people"):
        op.execute(f"alter table {table} add column team text not null default ''")
    connection = op.get_bind()
    if connection.dialect.name == "sqlite":
        _allow_teams_on_sqlite(connection)
    else:
        op.execute("alter table llm_spent drop constraint llm_spent_kind_check")
        op.execute(f"alter table llm_spent add constraint llm_spent_kind_check check ({NEW_CHECK})")


def _allow_teams_on_sqlite(connection: Any) -> None:
    """Copy the table, because SQLite cannot change a constraint otherwise. It has few rows: one a day and subject."""
    run = connection.exec_driver_sql
    (table,) = run("select sql from sqlite_schema where type = 'table' and name = 'llm_spent'").one()
    assert table.count(OLD_CHECK) == 1
    run("alter table llm_spent rename to llm_spent_before")
    run(table.replace(OLD_CHECK, NEW_CHECK))
    run("insert into llm_spent select tenant, kind, subject, day, tokens, cost from llm_spent_before")
    run("drop table llm_spent_before")
    run("create index llm_spent_by_day on llm_spent (tenant, kind, day)")
