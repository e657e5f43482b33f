"""Webhooks: subscriptions to events, and their signed delivery at least once."""
