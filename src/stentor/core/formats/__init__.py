"""Formats of data: canonical JSON, the difference of two JSON values, DEFLATE."""
