"""Governance: updates of agents and who approves them, checkpoints of their state, rollbacks, computed trust."""
