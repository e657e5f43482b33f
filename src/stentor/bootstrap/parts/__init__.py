"""Wires the domains: one module for each, or for a few that are always used together."""
