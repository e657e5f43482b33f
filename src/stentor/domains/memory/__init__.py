"""Memory: searchable documents in the vault, which agents change without losing each other's edits."""
