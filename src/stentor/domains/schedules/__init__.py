"""Schedules: tasks that are submitted again and again, at the times of a cron expression."""
