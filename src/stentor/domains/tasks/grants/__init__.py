"""Delegated authority: an agent hands another a part of what it may ask for, for the task that it works on."""
