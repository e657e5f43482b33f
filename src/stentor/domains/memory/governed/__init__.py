"""The memory behind a gate: each use needs a verified authority, and each denial stands in the run log."""
