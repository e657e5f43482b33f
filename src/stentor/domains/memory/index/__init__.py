"""The search index: one SQLite file beside the database, which may be deleted at any time."""
