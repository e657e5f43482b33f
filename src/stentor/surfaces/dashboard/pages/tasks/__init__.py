"""The pages of tasks: the list and actions on many, one task with its steps, runs, and what it asks people."""
