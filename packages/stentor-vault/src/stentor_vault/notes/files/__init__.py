"""Files of a vault in a folder: safe operations, many at once, locks by path, and file events."""
