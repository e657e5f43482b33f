"""Replays of runs: the loop of an `llm` agent runs again over its journal, and nothing is called or recorded.

`model` has the report, `service` runs the loop, reads the journal and compares, `operations` offers it.
"""
