"""The note store: nine tools over a vault, for agents that have its key."""
