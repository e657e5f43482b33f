"""Entry point for Alembic; `runner` passes the connection."""

from alembic import context

attributes = context.config.attributes
context.configure(connection=attributes["connection"], target_metadata=None, on_version_apply=attributes["applied"])
with context.begin_transaction():
    context.run_migrations()
