"""Execution of tasks: dispatchers, the executor, runtimes, leases, and the recording of outcomes.

Which agent gets a task is decided in `routing`; the task's own life cycle is in `tasks`.
"""
