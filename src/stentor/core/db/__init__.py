"""The database port: `await db.write(fn)` and `await db.read(fn)` over SQLite or PostgreSQL."""

from stentor.core.db.database import Database
from stentor.core.db.journal import Journal
from stentor.core.db.sql import Sql
from stentor.core.db.tx import Tally, Tx

__all__ = ["Database", "Journal", "Sql", "Tally", "Tx"]
