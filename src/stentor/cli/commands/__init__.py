"""The commands of `stentor`, one module per group.

All modules are imported at every start, so heavy imports stay inside functions: that keeps `stentor --help` fast.
"""
