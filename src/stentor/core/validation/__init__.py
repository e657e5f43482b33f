"""Validation of what clients send: JSON Schema, texts and times, and what pydantic found wrong, in plain words."""
