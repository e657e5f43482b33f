"""The overview, what changed recently, and the alerts."""
