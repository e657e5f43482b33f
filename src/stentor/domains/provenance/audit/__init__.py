"""Verification: the whole run log recomputed from the rows of the database, and what does not fit named."""
