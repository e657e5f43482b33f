"""Budgets, groups of models and fallbacks that admins set while the service runs, besides those of the settings."""
