"""Tasks from submission to their final status; the database row is authoritative. `execution` runs them."""
