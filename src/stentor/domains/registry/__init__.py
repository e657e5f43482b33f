"""The registry of agents: capabilities, scores, trust tier, runtime, status, violations, and who is online.

Which agent gets a task is decided in `routing`; trust scores are in `trust`.
"""
