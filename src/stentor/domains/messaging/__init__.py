"""Messaging: accepts ATP messages, queues them, executes their actions in order, and records the responses."""
