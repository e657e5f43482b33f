"""The search index of a single process: keywords in a SQLite file, vectors in memory."""
