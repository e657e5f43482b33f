"""Moves the whole content of a database from SQLite to PostgreSQL, or back. See docs/decisions/0027-moving-up.md."""

from stentor.core.db.transfer.database_copy import DatabaseCopy, Side, open_side
from stentor.core.db.transfer.model import CopiedTable, CopyPlan, Table

__all__ = ["CopiedTable", "CopyPlan", "DatabaseCopy", "Side", "Table", "open_side"]
