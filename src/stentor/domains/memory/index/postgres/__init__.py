"""The search index that several processes share, in a schema of the service's PostgreSQL database."""
