"""The gateway: the contract's core API under /api/v1."""
