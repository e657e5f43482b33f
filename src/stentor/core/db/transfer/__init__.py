"""Copy all data of an installation from SQLite to PostgreSQL, or back: `stentor db copy`.

`database_copy` runs the copy, `model` plans and validates it, `sqlite` and `postgres` are the two databases.
`tenant_split` moves tenants between two PostgreSQL databases (`stentor db split`); import it from its module, which
needs PostgreSQL's client. Backups of a SQLite file are in `db/sqlite/backup`. See docs/decisions/0027-moving-up.md and
0071-split.md.
"""

from stentor.core.db.transfer.database_copy import DatabaseCopy, open_side
from stentor.core.db.transfer.model import CopiedTable, CopyPlan, Side, Table

__all__ = ["CopiedTable", "CopyPlan", "DatabaseCopy", "Side", "Table", "open_side"]
