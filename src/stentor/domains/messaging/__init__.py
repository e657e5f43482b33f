"""Messaging: ATP messages are taken in, queued, carried out in order, and answered."""
