"""Agents as models: a conversation becomes a task, and the agent's answer the next message."""
