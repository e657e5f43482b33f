"""Locks between the processes on one database: their names, their connection, and leader election."""
