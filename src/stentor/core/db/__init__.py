"""The database port: `await db.write(fn)` and `await db.read(fn)` over SQLite or PostgreSQL."""

from stentor.core.db.database import Database, Tx
from stentor.core.db.sql import Sql

__all__ = ["Database", "Sql", "Tx"]
