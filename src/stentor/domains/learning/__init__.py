"""Learning: track records and Hebbian weights per agent and task type, connections, oscillation alerts."""
