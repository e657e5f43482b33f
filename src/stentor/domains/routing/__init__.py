"""Routing: chooses the agent of a task by admission and ranking. Reads only memory, never the database."""
