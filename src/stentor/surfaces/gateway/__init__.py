"""The gateway: the core API under /api/v1, and the OpenAI-compatible API under /v1."""
