"""The ASGI applications. They never import each other."""
