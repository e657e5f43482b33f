"""Verification of the run log: recompute all hashes from the rows of the database and report every mismatch."""
