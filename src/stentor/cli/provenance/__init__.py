"""What `stentor provenance` does: `run_log` verifies and exports, `view` prints the results.

`checkpoint_sources` finds the keys and checkpoints to verify against.
"""
