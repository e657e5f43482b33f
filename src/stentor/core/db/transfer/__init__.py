"""Moves the whole content of a database from SQLite to PostgreSQL, or back. See docs/decisions/0027-moving-up.md."""

from stentor.core.db.transfer.model import Copied, Plan, Table
from stentor.core.db.transfer.move import Move
from stentor.core.db.transfer.sides import Side, open_side

__all__ = ["Copied", "Move", "Plan", "Side", "Table", "open_side"]
