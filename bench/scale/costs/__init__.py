"""What each step costs on this machine, measured against a real PostgreSQL; kept as JSON for the model."""
