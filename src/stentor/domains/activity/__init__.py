"""Activity: what happened to a task, from the run log, and live."""
