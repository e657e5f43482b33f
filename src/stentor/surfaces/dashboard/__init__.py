"""The dashboard service: a read-only view of tasks and agents, streamed task execution, and the web pages."""
