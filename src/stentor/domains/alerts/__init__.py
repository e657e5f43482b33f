"""Alerts: the service watches itself, and says on pages, by webhook and by e-mail what is wrong."""
