"""Budgets, groups of models and fallbacks that admins set while the service runs, beside those of the settings."""
