"""Vectors in tables, and all of them in memory to be searched exactly."""
