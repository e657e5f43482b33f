"""Task notes: a mirror of every task as a note in the vault, and an inbox whose notes become tasks.

The vault itself is in `notes`, the life cycle of tasks in `tasks`.
"""
