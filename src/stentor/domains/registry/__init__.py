"""The registry: agents with their scores, trust tier, status and violations."""
