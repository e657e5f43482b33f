"""The index that several processes share: a schema of its own in the service's PostgreSQL."""
