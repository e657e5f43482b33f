"""The audit: who signed in, what was changed and what was refused, from the run log."""
