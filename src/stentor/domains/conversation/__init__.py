"""Agents as models: a chat request to `agent:<capability>` becomes a task, its result the reply."""
