"""The database layer: `await db.write(fn)` and `await db.read(fn)` over SQLite or PostgreSQL.

`database` has the writer thread, `transaction` the `Tx` that functions receive, `sql` and `rows_sql` the statements,
`driver` the interface that `sqlite` and `postgres` implement. `transfer` copies a database from one to the other. The
schema is in `core/migrations`.
"""

from stentor.core.db.counters import CounterTable
from stentor.core.db.database import Database
from stentor.core.db.driver import NO_LOCKS
from stentor.core.db.prefetch import Prefetch
from stentor.core.db.rows_sql import AppendOnlyTable, NumberedTable, RowsSql, RowUpdate
from stentor.core.db.sql import Sql
from stentor.core.db.transaction import Tx

__all__ = [
    "NO_LOCKS",
    "AppendOnlyTable",
    "CounterTable",
    "Database",
    "NumberedTable",
    "Prefetch",
    "RowUpdate",
    "RowsSql",
    "Sql",
    "Tx",
]
