"""SQLite: its driver, backups of a database in use, and files that can be rebuilt."""
