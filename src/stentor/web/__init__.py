"""Shared by all HTTP surfaces: pure ASGI middleware, error rendering, strict routes, event streams, wire types."""
