"""Learning: Hebbian weights per agent and task type, connections between agents, the sentinel."""
