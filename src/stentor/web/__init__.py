"""What every HTTP surface shares: pure ASGI middleware, error rendering, strict routes, event streams."""
