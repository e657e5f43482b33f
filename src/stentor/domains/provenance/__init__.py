"""Provenance: the run log as a Merkle tree with signed checkpoints, and what can be proven with it."""
