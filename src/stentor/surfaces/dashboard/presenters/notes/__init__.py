"""Presentation of notes: rendered text, the graph of their links, and their validity."""
