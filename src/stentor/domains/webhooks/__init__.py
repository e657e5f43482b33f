"""Webhooks: whoever subscribes to events gets each of them, signed, at least once."""
