"""Grants: authority that an agent delegates to another agent for one task. See docs/delegation.md."""
