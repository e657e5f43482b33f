"""PostgreSQL: its driver and one connection, statements sent together, and limits on waits for the server."""
