"""Submission of a task: its draft, its routing and first status, and the transaction that stores it."""
