"""Reads of tasks for a caller: one task, lists and their totals, charts, and who may read what."""
