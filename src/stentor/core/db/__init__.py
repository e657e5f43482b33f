"""The database port: `await db.write(fn)` and `await db.read(fn)` over SQLite or PostgreSQL."""

from stentor.core.db.database import Database
from stentor.core.db.driver import AppendOnlyTable, Sql
from stentor.core.db.transaction import CounterTable, Tx

__all__ = ["AppendOnlyTable", "CounterTable", "Database", "Sql", "Tx"]
