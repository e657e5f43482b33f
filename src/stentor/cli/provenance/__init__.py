"""What `stentor provenance` does: `run_log` verifies and exports, `checkpoint_sources` finds what to verify against, and
`view` prints the results.
"""
