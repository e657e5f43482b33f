"""How commands call the service: the client, how it reaches the service, and the responses."""
