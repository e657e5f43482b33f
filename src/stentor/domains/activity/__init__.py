"""The activity of a task: its events from the run log as a page, and as a live stream."""
