"""The commands of `stentor`, one module a group.

They are imported at every start, so heavy imports stay inside functions.
"""
