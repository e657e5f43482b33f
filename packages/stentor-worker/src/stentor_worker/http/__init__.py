"""The HTTP client of the SDK, and the part of HTTP/1.1 under it."""
