"""Memory that can be corrected: what is invalid, what was derived from it, and when a note holds."""
