"""Shared base of all pages: session check, gateway calls, queries, live updates, templates and static files."""
