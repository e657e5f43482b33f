"""The index of one process: a SQLite file beside the database, words in FTS5, vectors in memory."""
