"""Replays of runs: the loop of an `llm` agent runs again over its journal, and nothing is called or recorded.

`model` has the report, `journal` reads and compares, `service` runs the loop, `operations` offers it.
"""
