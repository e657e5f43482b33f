"""Signed checkpoints of the Merkle tree: their format, the key, and what is checked before signing."""
