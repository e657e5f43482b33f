"""Execution: the dispatcher, the runtimes, leases, and what an outcome leads to."""
