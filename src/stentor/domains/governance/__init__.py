"""Governance: updates of agents and their approval, checkpoints, rollbacks, and trust scores computed from metrics."""
