"""PostgreSQL finds a task of a new database by its key.

Until autovacuum has analyzed a table, about a minute, all indexes that have the columns of the key are as good to it,
and it takes the one that was created last, in which it reads all tasks of the tenant. So the key is created last.
"""

from alembic import op

revision = "0052"
down_revision = "0051"


def upgrade() -> None:
    connection = op.get_bind()
    # A table with rows is analyzed, and its index would take a while.
    if (
        connection.dialect.name == "postgresql"
        and not connection.exec_driver_sql("select 1 from tasks limit 1").first()
    ):
        op.execute("alter table tasks drop constraint tasks_pkey, add primary key (tenant, task_id)")
